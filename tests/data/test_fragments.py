"""Scaffolds, linkers and growing fragments: templates, and samples that contain them."""

import re
from dataclasses import fields, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import pytest
import torch

import cwdfm
from cwdfm import generation
from cwdfm.cli import sample
from cwdfm.data.fragments import Fragment, Linker, Scaffold, expand_holes, grow
from cwdfm.data.moses import TOKENS
from cwdfm.data.smiles import SelfiesTokenizer, SmilesTokenizer, canonical
from cwdfm.errors import InputError
from cwdfm.generation import length_law
from cwdfm.method.flow import Flow
from cwdfm.sample_file import read_samples
from cwdfm.solver.recording import Recording
from tests.support.command import rejected

chem = pytest.importorskip("rdkit.Chem", reason="needs the extra 'molecules'")

WORDS = SmilesTokenizer((*TOKENS, "[C@H]", "[C@@H]", "/"))
INDOLE = "c1ccc2[nH]ccc2c1"
FRAGMENTS: dict[str, Fragment] = {
    "scaffold": Scaffold(INDOLE),
    "marked": Scaffold("c1cc(*)ccc1*"),
    "stereo": Scaffold("C[C@H](N)C(=O)O"),
    "grow": grow("O=C(O)c1ccccc1"),
    "linker": Linker("c1ccncc1*", "C1CCNCC1"),
}


def fill(template: str, atom: str = "C") -> str:
    """Fill the holes with a chain of atoms."""
    ids = WORDS.encode_template(template)
    return WORDS.decode(WORDS.encode(atom)[0] if i is None else i for i in ids)


@pytest.mark.parametrize("name", FRAGMENTS)
def test_filled_templates_contain_the_fragment(name: str) -> None:
    """With carbon chains in holes of any size, every sample is valid."""
    fragment = FRAGMENTS[name]
    fragment.check(WORDS, 48)
    templates = [fragment.template(WORDS, 48, 0, i) for i in range(60)]
    texts = [fill(template) for template in templates]
    assert all(fragment.accepts(text) for text in texts)
    assert max(len(WORDS.encode(text)) for text in texts) <= 46
    assert len(set(map(canonical, texts))) > 25
    assert not fragment.accepts("CCCC")
    assert not fragment.accepts("C(")


@pytest.mark.parametrize("name", FRAGMENTS)
def test_templates_do_not_depend_on_the_smiles_of_the_fragment(name: str) -> None:
    """Nor on the order of atoms, the aromatic or Kekule form, or explicit hydrogen atoms."""
    fragment = FRAGMENTS[name]
    texts = [chem.MolToSmiles(part) for part in fragment.parts]
    kekule = {"kekuleSmiles": True, "allHsExplicit": True}
    writings = [
        [writing(text, {"doRandom": True, **each}) for text in texts]
        for each in ({}, kekule, {}, kekule)
    ]
    assert len({tuple(each) for each in writings}) > 2
    for each in writings:
        names = [field.name for field in fields(fragment) if field.type is str]
        changed = replace(fragment, **dict(zip(names, each, strict=True)))
        for seed in range(5):
            assert changed.template(WORDS, 48, seed) == fragment.template(WORDS, 48, seed)


def writing(smiles: str, options: dict[str, bool]) -> str:
    molecule = chem.MolFromSmiles(smiles)
    if "kekuleSmiles" in options:
        chem.Kekulize(molecule, clearAromaticFlags=True)
    return str(chem.MolToSmiles(molecule, **options))


def test_numbers_of_atoms_and_marks_are_ignored() -> None:
    """For attachment points in the notation of RDKit and BRICS, and for mapped atoms."""
    expected = Scaffold("*c1ccc(C*)cc1").template(WORDS, 48, 3)
    for text in ("[*:1]c1ccc(C[*:2])cc1", "[1*]c1ccc([CH2:7][16*])cc1"):
        assert Scaffold(text).template(WORDS, 48, 3) == expected
        assert Scaffold(text).accepts("Cc1ccc(CC)cc1")
    linked = Linker("[*:1]c1ccccc1", "[*:2]CO").template(WORDS, 48, 3)
    assert linked == Linker("*c1ccccc1", "*CO").template(WORDS, 48, 3)


def test_templates_of_linkers_begin_like_canonical_smiles() -> None:
    """They start inside a fragment, and the hole is between the fragments."""
    template = FRAGMENTS["linker"].template(WORDS, 48, 0)
    text = re.sub(r"\[\d+\]", "S", template)
    assert text.startswith("c1cncc(SC")
    stereo = Linker("CO[C@](*)(C)N", "CC(=O)[C@@H](*)O")
    assert stereo.accepts(stereo.marked(np.random.default_rng(0)).replace("*", "C"))


def test_marks_are_the_only_attachment_points() -> None:
    """Both marks of para-xylylene are used, and growing uses one atom."""
    for seed in range(20):
        text = fill(FRAGMENTS["marked"].template(WORDS, 30, seed))
        assert chem.MolFromSmiles(text).HasSubstructMatch(chem.MolFromSmarts("Cc1ccc(C)cc1"))
        assert FRAGMENTS["grow"].template(WORDS, 30, seed).count("[") == 1


def test_molecules_are_extended_at_the_marks_only() -> None:
    fragment = FRAGMENTS["marked"]  # para
    assert fragment.accepts("Cc1ccc(CC)cc1")
    for other in ("Cc1ccccc1", "Cc1cccc(C)c1", "Cc1ccc(C)c(C)c1", "O=C1C=CC(=O)C=C1"):
        assert not fragment.accepts(other), other
    assert not Scaffold("C[C@H](N*)C(=O)O").accepts("C[C@@H](NC)C(=O)O")


def test_lengths_follow_the_model() -> None:
    """At t = 0 the exact posterior predicts the law of the end token, for both sources."""
    law, words = [0.2, 0.5, 0.3], SmilesTokenizer(("C",))
    target = torch.zeros((4,) * 4, dtype=torch.float64)
    for size, share in enumerate(law):
        target[tuple(words.frame(words.encode("C" * size), 4, whole=True))] = share
    for source in (cwdfm.MaskSource(4), cwdfm.UniformSource(4)):
        flow = Flow(source, cwdfm.Polynomial(2.0))
        model = cwdfm.ExactPosterior(target, source, flow.schedule)
        trained = SimpleNamespace(method=flow, model=model, tokenizer=words)
        found = length_law(cast(Any, trained), 4)
        assert found is not None
        assert found == pytest.approx(law, abs=1e-3)


def test_templates_follow_the_law_of_lengths() -> None:
    """If the fragment is longer than any text, all lengths are equally likely."""
    for size in (20, 5):
        law = np.eye(47)[size]
        rows = [Scaffold(INDOLE).template(WORDS, 48, i, law=law) for i in range(9)]
        sizes = {len(WORDS.encode_template(row)) for row in rows}
        assert sizes == {20} if size == 20 else len(sizes) > 3


def test_a_linker_joins_the_fragments_at_its_ends() -> None:
    """The hole is the only path between them: removing an atom of it separates them."""
    for seed in range(20):
        molecule = chem.MolFromSmiles(fill(FRAGMENTS["linker"].template(WORDS, 30, seed), "O"))
        if molecule is None:  # a peroxide is valid, a ring of oxygen atoms does not occur
            raise AssertionError(seed)
        chain = [a.GetIdx() for a in molecule.GetAtoms() if a.GetSymbol() == "O"]
        assert all(molecule.GetAtomWithIdx(i).GetDegree() == 2 for i in chain)


def test_stereo_is_kept() -> None:
    fragment = FRAGMENTS["stereo"]
    assert fragment.accepts("C[C@H](NC)C(=O)O")
    assert not fragment.accepts("C[C@@H](NC)C(=O)O")
    assert not fragment.accepts("CC(NC)C(=O)O")


def test_holes_of_unknown_length() -> None:
    """All sizes occur, about equally often: 300 draws of 7 sizes deviate by less than 5 sigma."""
    sizes = [expand_holes("C*{2,8}O", 0, i) for i in range(300)]
    counts = np.array([sizes.count(f"C[{size}]O") for size in range(2, 9)])
    assert counts.sum() == 300
    assert (abs(counts - 300 / 7) < 5 * (300 / 7 * 6 / 7) ** 0.5).all()
    assert expand_holes("C*{2,8}O") == "C[8]O"  # the most room it needs
    assert expand_holes("C***", 1) == "C***"


ERRORS: dict[str, tuple[Any, str]] = {
    "not-smiles": (lambda: Scaffold("C(").check(WORDS, 32), r"'C\(' is not a valid molecule"),
    "ring": (lambda: Scaffold("C1CC").check(WORDS, 32), "unclosed ring"),
    "valence": (lambda: Scaffold("CO(C)C").check(WORDS, 32), "valence for atom # 1 O, 3"),
    "aromatic": (lambda: Scaffold("n1cccc1").check(WORDS, 32), "kekulize"),
    "unknown": (
        lambda: Scaffold("C[Si](C)C").check(WORDS, 32),
        r"vocabulary of the model: \[SiH\]|\[Si\]",
    ),
    "no-atoms": (lambda: Scaffold("*").check(WORDS, 32), "no atoms"),
    "parts": (lambda: Scaffold("CC.CC").check(WORDS, 32), "several parts"),
    "full": (lambda: Scaffold("FC(F)(F)F").check(WORDS, 32), "cannot be extended"),
    "no-room": (lambda: Scaffold(INDOLE).check(WORDS, 12), "but a sample has 10"),
    "marks": (lambda: grow("*CC*"), "has 2 marks"),
    "linker-marks": (lambda: Linker("*CC*", "C").check(WORDS, 32), "has 2 marks"),
    "range": (lambda: expand_holes("C*{8,2}"), r"\*\{2,8\}"),
    "range-zero": (lambda: expand_holes("C*{0,2}"), "1 to"),
    "selfies": (lambda: Scaffold("CC").check(SelfiesTokenizer(("[C]",)), 32), "SMILES model"),
}


@pytest.mark.parametrize("name", ERRORS)
def test_errors_say_what_is_wrong(name: str) -> None:
    call, message = ERRORS[name]
    with pytest.raises(InputError, match=message):
        call()


def test_samples_contain_the_scaffold() -> None:
    """For any batch size; each sample depends on its number only."""
    trained = cwdfm.load("qm9-mask-small")
    fragment = Scaffold("C1CC1")
    out = cwdfm.generate(trained, n=6, steps=8, seed=1, fragment=fragment)
    assert all(map(fragment.accepts, out.texts))
    assert len(set(map(canonical, out.texts))) > 3
    again = cwdfm.generate(trained, n=6, steps=8, seed=1, fragment=fragment, batch_size=2)
    assert again.texts == out.texts
    ranged = cwdfm.generate(trained, n=8, steps=4, template="C1CC1*{1,5}").texts
    assert all(text.startswith("C1CC1") for text in ranged)
    assert len({len(trained.tokenizer.encode(text)) for text in ranged}) > 1
    with pytest.raises(InputError, match="template cannot be combined"):
        cwdfm.generate(trained, fragment=fragment, template="C*")


@pytest.mark.slow
def test_a_recording_shows_the_accepted_tries_with_the_fragment_given() -> None:
    trained = cwdfm.load("qm9-mask-small")
    fragment = Linker("C1CC1", "CO")
    options: dict[str, Any] = {"n": 5, "steps": 4, "seed": 1, "fragment": fragment}
    out = cwdfm.generate(trained, **options, record=3)
    recording = out.recording
    assert recording is not None
    first = cwdfm.generate(trained, template="C[3]", n=1, steps=4).evaluations
    assert int(out.evaluations[:3].max()) > int(first.max())  # some were drawn again
    assert np.array_equal(recording.tokens, out.tokens[:3].numpy())
    for row, fixed in enumerate(recording.fixed):
        moved = recording.move_position[recording.move_sequence == row]
        assert sorted(moved.tolist()) == np.flatnonzero(~fixed).tolist()
        assert np.array_equal(recording.start[row][fixed], recording.tokens[row][fixed])
    assert np.all(np.diff(recording.move_step) >= 0)
    assert cwdfm.generate(trained, **options).texts == out.texts


def test_the_command_samples_fragments(tmp_path: Path) -> None:
    for words, fragment in (
        (("--scaffold", "C1CC1"), Scaffold("C1CC1")),
        (("--grow", "c1ccccc1*"), grow("c1ccccc1*")),
        (("--linker", "C1CC1", "CO"), Linker("C1CC1", "CO")),
    ):
        out = tmp_path / f"{words[0][2:]}.smi"
        command = ["qm9-mask-small", "--n", "3", "--steps", "6", "--out", str(out), "--record"]
        sample.main([*command, *words])
        assert all(map(fragment.accepts, out.read_text().split()))
        recording = Recording.load(out.with_suffix(".recording.npz"))
        decode = cwdfm.load("qm9-mask-small").tokenizer.decode
        assert [decode(row) for row in recording.tokens.tolist()] == out.read_text().split()


def test_samples_without_the_fragment_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(generation, "FRAGMENT_TRIES", 1)
    out = tmp_path / "a.jsonl"
    words = ["--n", "8", "--steps", "1", "--scaffold", "C1CC1", "--out", str(out)]
    sample.main(["qm9-mask-small", *words])
    found = read_samples(out)
    kept = sum(map(Scaffold("C1CC1").accepts, found.texts))
    assert found.head["with_fragment"] == kept < 8
    assert f"contain the fragment: {kept} of 8" in capsys.readouterr().out


def test_command_line_errors(tmp_path: Path) -> None:
    sample = ("sample", "qm9-mask-small", "--n", 2, "--steps", 2, "--out", tmp_path / "a.smi")
    for words, message in (
        (("--scaffold", "C("), "is not a valid molecule"),
        (("--scaffold", "CCP"), "vocabulary of the model: P"),
        (("--scaffold", "CC", "--template", "C*"), "--scaffold and --template cannot be combined"),
        (("--grow", "*C*"), "has 2 marks"),
        (("--template", "C*{1,90}"), "room for"),
    ):
        assert message in rejected(*sample, *words)
    assert not list(tmp_path.iterdir())
