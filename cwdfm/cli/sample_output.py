"""The output of `cwdfm sample`: decode samples, select them (--only), and write the file."""

from collections.abc import Collection
from typing import Any

from cwdfm.cli.sample_options import Options, fragment_of
from cwdfm.data.smiles import MoleculeTokenizer, canonical
from cwdfm.data.tokenizer import Tokenizer
from cwdfm.errors import RunError
from cwdfm.generation import FRAGMENT_TRIES
from cwdfm.pretrained.model import Pretrained
from cwdfm.sample_file import PartialSamples, SampleFile, write_samples
from cwdfm.solver import Samples

LEFT_OUT = {"valid": "invalid", "unique": "repeated"}  # what --only leaves out


def records(trained: Pretrained, index: list[int], samples: Samples) -> dict[int, dict[str, Any]]:
    """Decode samples into one record per sample, keyed by its index."""
    rows = zip(index, samples.tokens.tolist(), samples.evaluations.tolist(), strict=True)
    decode = trained.tokenizer.decode
    result = {i: {"text": decode(t), "tokens": t, "evaluations": e} for i, t, e in rows}
    if samples.plausibility is not None:
        for record, value in zip(result.values(), samples.plausibility.tolist(), strict=True):
            record["plausibility"] = value
    return result


def selected(
    done: list[dict[str, Any]], only: Collection[str], tokenizer: Tokenizer
) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Select the valid or unique sample records, and count those left out by reason."""
    molecules = isinstance(tokenizer, MoleculeTokenizer)
    counts = {reason: 0 for name, reason in LEFT_OUT.items() if name in only}
    kept, seen = [], set[str]()
    for record in done:
        text = canonical(record["text"]) if molecules else record["text"]
        if text is None and "valid" in only:
            counts["invalid"] += 1
        elif (key := text or record["text"]) in seen and "unique" in only:
            counts["repeated"] += 1
        else:
            kept.append(record)
            seen.add(key)
    return kept, counts


def finish(
    options: Options, partial: PartialSamples, header: dict[str, Any], tokenizer: Tokenizer
) -> int:
    """Combine the saved batches into the output file; returns its number of samples."""
    done = list(partial.records().values())
    if len(done) < options.n:
        raise RunError(
            f"{partial.folder} holds only {len(done)} of {options.n} samples: another run of the "
            f"same command may already have written {options.out}. If that file is complete, "
            f"delete {partial.folder}; otherwise run the same command again. Use torchrun to let "
            f"several processes share the work"
        )
    header["evaluations"] = sum(record["evaluations"] for record in done)
    if options.reject_below:
        accepted = sum(record["plausibility"] >= options.reject_below for record in done)
        header["accepted"] = accepted
        others = f"; the others are the most plausible of {options.max_tries} tries"
        share = f"{accepted} of {len(done)} ({accepted / len(done):.1%})"
        print(f"accepted: {share}" + (others if accepted < len(done) else ""))
    if (fragment := fragment_of(options)) is not None:
        header["with_fragment"] = sum(fragment.accepts(record["text"]) for record in done)
        if header["with_fragment"] < len(done):
            print(
                f"contain the fragment: {header['with_fragment']} of {len(done)}; the others are "
                f"invalid or do not contain it after {FRAGMENT_TRIES} tries (--only valid leaves "
                f"out the invalid ones)"
            )
    if options.only:
        done, header["left_out"] = selected(done, options.only, tokenizer)
        drawn = options.n
        for reason, count in header["left_out"].items():
            print(f"left out: {count} {reason} of {drawn} samples ({count / drawn:.1%})")
    texts, tokens = [record["text"] for record in done], [record["tokens"] for record in done]
    write_samples(options.out, SampleFile(texts, tokens, header))
    partial.discard()
    return len(done)
