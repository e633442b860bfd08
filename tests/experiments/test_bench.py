"""The benchmark: bounds match the arithmetic, every case runs, and a killed run resumes."""

import json
import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

import cwdfm
from cwdfm.errors import InputError
from cwdfm.loss import CrossEntropy
from cwdfm.method.base import DataBatch
from cwdfm.method.flow import FlowObjective
from cwdfm.model.conditions import FREQUENCIES
from cwdfm.model.transformer import DiT, DiTConfig, TrunkState
from cwdfm.ops.cuda_graph import WARMUP_CALLS
from experiments.bench import bounds, sampling, subject
from experiments.bench.bounds import Ceilings, Job, Network, Work, project
from experiments.bench.measure import Case, Measured, Record, Way, measure_ceilings
from experiments.bench.settings import SHAPES, Settings
from experiments.bench.subject import SCHEDULE, PeerObjective, make_model, peer_path, shake
from experiments.bench.suite import CASES, Results, chosen, lines_of, run, text_of
from tests.support.command import command

TINY = Settings("tiny", torch.device("cpu"))
ONES = Ceilings(flops=10.0, bytes=2.0, dtype="float32")


def silent(_: str) -> None:
    pass


# The bounds.


def linear_flops(x: torch.Size, weight: torch.Size, *_: object, **__: object) -> int:
    """Operations of oneDNN's linear map, which PyTorch does not count."""
    return 2 * x.numel() * weight[0]


def counted(work: Callable[[], object]) -> int:
    """Operations of the matrix products, as PyTorch counts them."""
    fused = getattr(torch.ops.mkldnn, "_linear_pointwise", None)
    counter = FlopCounterMode(display=False, custom_mapping={fused: linear_flops} if fused else {})
    with counter, sdpa_kernel(SDPBackend.MATH):  # which the counter sees through
        work()
    return int(counter.get_total_flops())


CONFIG = DiTConfig(num_tokens=11, width=16, depth=3, heads=2, conditioning=8, dropout=0.0)
BATCH, LENGTH = 5, 7


def test_operations_match_the_count_of_pytorch() -> None:
    model = DiT(CONFIG)
    shake(model)
    x, t = torch.zeros(BATCH, LENGTH, dtype=torch.int64), torch.full((BATCH,), 0.5)
    trunk = bounds.trunk_flops(CONFIG, BATCH, LENGTH)
    head = bounds.head_flops(CONFIG, BATCH * LENGTH, 11)
    with torch.no_grad():
        assert counted(lambda: model.trunk(x, t)) == trunk
        assert counted(lambda: model(x, t)) == trunk + head
    step = bounds.training(
        CONFIG, 0, batch=BATCH, length=LENGTH, micro_batches=1, rows=BATCH * LENGTH, vocab=11
    )
    # The time itself needs no gradient: its first linear map has two products, not three.
    spared = 2 * BATCH * FREQUENCIES * CONFIG.conditioning
    assert counted(lambda: model(x, t).sum().backward()) == step.flops - spared


def test_matrix_parameters_are_the_matrices_of_the_model() -> None:
    model = DiT(CONFIG)
    matrices = sum(p.numel() for p in model.parameters() if p.dim() == 2)
    assert bounds.trunk_weights(CONFIG) == matrices - 2 * 11 * CONFIG.width  # embedding and head


def test_bytes_by_hand() -> None:
    step = bounds.training(CONFIG, 100, batch=4, length=2, micro_batches=2, rows=8, vocab=11)
    assert step.bytes == 4 * 100 * 18
    assert bounds.corruption(3, 5) == Work(0.0, 26.0 * 15)
    assert bounds.draws(3, 5, 2) == Work(0.0, 30.0)
    drawn = bounds.sampling(CONFIG, sequences=2, length=7, rows=3, vocab=10, calls=4, width=2)
    assert drawn.bytes == 4 * 2 * (bounds.trunk_weights(CONFIG) + 160)
    assert drawn.flops == bounds.trunk_flops(CONFIG, 2, 7) + 2 * 3 * 16 * 10


def test_bound_is_the_slower_of_arithmetic_and_memory() -> None:
    assert Work(30.0, 4.0).seconds(ONES) == 3.0
    assert Work(30.0, 4.0).limit(ONES) == "arithmetic"
    assert Work(30.0, 8.0).seconds(ONES) == 4.0
    assert Work(30.0, 8.0).limit(ONES) == "memory"


def test_ceilings_are_measured() -> None:
    found = measure_ceilings(TINY)
    assert found.flops > 0
    assert found.bytes > 0
    assert found.dtype == "float32"


def test_a_cpu_does_not_run_the_full_scale_by_accident(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    ended = command("bench", "--out", tmp_path / "a.json")
    assert ended.returncode == 2
    assert "--scale tiny, or --device cpu" in ended.stderr
    assert not list(tmp_path.iterdir())


# The peer does the same work.


@pytest.mark.parametrize("masked", [False, True])
def test_peer_loss_equals_ours(masked: bool) -> None:
    """The times are chosen so that nothing is random: x_t is the data or fully masked."""
    source: cwdfm.Source = cwdfm.MaskSource(64) if masked else cwdfm.UniformSource(64)
    model = make_model(TINY, source)
    if masked:
        model.readout.bias[source.vocab_size :] = -1e9  # the peer would give the mask a chance
    x_1 = torch.randint(0, 64, (3, 16), generator=torch.manual_seed(0))
    t = torch.full((3,), 0.0 if masked else 1.0)
    path = cwdfm.MixturePath(source, SCHEDULE)
    ours = FlowObjective(path, CrossEntropy("masked" if masked else "all"))
    theirs = PeerObjective(peer_path(), source, masked)
    nothing = torch.zeros_like(x_1, dtype=torch.bool)
    batch = DataBatch(x_1, t, nothing, torch.arange(3), seed=0, step=0)
    torch.testing.assert_close(theirs(model, batch), ours(model, batch))


def test_missing_peer_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(subject, "find_spec", lambda _: None)
    for name in ("training-molecules", "sampling-step", "samples-mask"):
        found = CASES[name].measure(TINY).ways
        theirs = [way for name, way in found.items() if not name.startswith("cwdfm")]
        assert next(iter(found.values())).seconds is not None
        assert theirs
        assert all(way.seconds is None for way in theirs)
        assert all(way.note == "not installed: flow_matching" for way in theirs)


# The cases.


@pytest.fixture(scope="module")
def everything(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All cases at the tiny scale, without compiling, which would take a minute."""
    out = tmp_path_factory.mktemp("bench") / "results.json"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "compile", lambda call, **options: call)
        run(TINY, chosen(()), out, say=silent)
    return out


def test_long_sequences_have_as_many_tokens() -> None:
    longer = Settings("full", torch.device("cpu")).longer().shapes
    usual = SHAPES["full"]
    assert longer.length == 8192
    assert longer.length * longer.train_batch == usual.length * usual.train_batch
    assert longer.length * longer.sample_batch == usual.length * usual.sample_batch


def test_summary_has_a_line_for_each_way(everything: Path) -> None:
    lines = Results.open(everything, TINY).summary(["draws", "sampling-step"]).splitlines()
    ways = [*CASES["sampling-step"].ways, *CASES["draws"].ways]
    assert all(way in line for way, line in zip(ways, lines[2:], strict=True))


@pytest.mark.parametrize("name", CASES)
def test_every_case_has_results(name: str, everything: Path) -> None:
    lines = [x for x in json.loads(everything.read_text())["table"] if x["case"] == name]
    assert [line["way"] for line in lines] == list(CASES[name].ways)
    for line in lines:
        numbers = [line[key] for key in ("ms", "bound_ms", "reached", "times_first")]
        for number in [*numbers, *line["facts"].values()]:
            assert math.isfinite(number)
            assert number > 0
    assert lines[0]["times_first"] == 1


def test_the_path_is_a_share_of_training(everything: Path) -> None:
    lines = json.loads(everything.read_text())["table"]
    (step,) = (x for x in lines if x["case"] == "training-uniform" and x["way"] == "cwdfm")
    path = next(x for x in lines if x["case"] == "context-path")
    share = path["ms"] / step["facts"]["micro_batch_ms"]
    assert path["facts"]["share_of_training"] == pytest.approx(share)


def test_results_round_trip(everything: Path) -> None:
    results = Results.open(everything, TINY)
    assert list(results.in_order) == list(CASES)
    before = everything.read_text()
    results.write()
    strip = ("command", "date")
    one, other = json.loads(before), json.loads(everything.read_text())
    assert {k: one[k] for k in one if k not in strip} == {
        k: other[k] for k in other if k not in strip
    }


def test_every_batch_size_is_warmed_up(monkeypatch: pytest.MonkeyPatch) -> None:
    """A batch of one is compiled separately, and must not be compiled while it is timed."""
    few = replace(TINY.shapes, sample_batch=6)
    monkeypatch.setitem(SHAPES, "tiny", few)
    source = cwdfm.MaskSource(few.vocab)
    model = make_model(TINY, source)
    sizes: list[int] = []

    def first_stage(x_t: Tensor, t: Tensor) -> TrunkState:
        sizes.append(len(x_t))
        return DiT.first_stage(model, x_t, t)

    monkeypatch.setattr(model, "first_stage", first_stage)
    sampling._warm(TINY, model, source, sampling.EULER, few.whole)
    assert all(sizes.count(size) > WARMUP_CALLS + 1 for size in (6, 4, 2, 1))


# The suite.


def fake(name: str, *ways: Way) -> Case:
    return Case(name, f"the work of {name}", {f"way {i}": w for i, w in enumerate(ways)})


def quick(_: Settings) -> Measured:
    return Measured(0.5, Work(30.0, 4.0))


def test_an_interrupted_run_resumes(tmp_path: Path) -> None:
    ran: list[str] = []
    killed = [True]

    def note(name: str) -> Way:
        def way(settings: Settings) -> Measured:
            if name == "b" and killed.pop():
                raise KeyboardInterrupt
            ran.append(name)
            return quick(settings)

        return way

    cases = [fake(name, note(name)) for name in "abc"]
    out = tmp_path / "results.json"
    with pytest.raises(KeyboardInterrupt):
        run(TINY, cases, out, say=silent)
    assert list(json.loads(out.read_text())["cases"]) == ["a"]
    killed.append(False)
    said: list[str] = []
    results = run(TINY, cases, out, say=said.append)
    assert ran == ["a", "b", "c"]
    assert list(results.records) == ["a", "b", "c"]
    assert "measured on" in said[1]
    killed.append(False)
    run(TINY, cases[1:], out, again=True, say=silent)
    assert ran == ["a", "b", "c", "b", "c"]


def test_failing_variant_is_reported_and_others_run(tmp_path: Path) -> None:
    def full(_: Settings) -> Measured:
        raise torch.OutOfMemoryError("CUDA out of memory")

    def broken(_: Settings) -> Measured:
        raise RuntimeError("no such kernel\nand more")

    cases = [fake("a", full, quick), fake("b", quick, broken)]
    said: list[str] = []
    results = run(TINY, cases, tmp_path / "results.json", say=said.append)
    first, second = results.records["a"].ways.values()
    assert (first.seconds, first.note) == (None, "out of memory")
    assert second.seconds == 0.5
    assert results.records["b"].ways["way 1"].note == "RuntimeError: no such kernel"
    assert any("out of memory" in text for text in said)
    assert Results.open(tmp_path / "results.json", TINY).records == results.records


def test_table_compares_with_the_first_variant() -> None:
    two = Measured(6.0, Work(30.0, 8.0), memory_gb=1.5, note="projected")
    record = Record("the work", {"one": Measured(4.0, Work(30.0, 4.0)), "two": two})
    assert Record.from_json(json.loads(json.dumps(asdict(record)))) == record
    lines = lines_of({"case": record}, ONES)
    shown = [(x.ms, x.bound_ms, x.limit, x.reached, x.times_first) for x in lines]
    assert shown == [(4000, 3000, "arithmetic", 0.75, 1), (6000, 4000, "memory", 2 / 3, 1.5)]
    text = text_of(lines, record.what)
    for part in ("the work", "arithmetic", "75%", "1.50", "projected"):
        assert part in text


def test_different_settings_are_an_error(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    run(TINY, [fake("a", quick)], out, say=silent)
    with pytest.raises(InputError, match=r"different settings"):
        Results.open(out, Settings("full", torch.device("cpu")))
    for content in ("{}", "[]", "not JSON"):
        out.write_text(content)
        with pytest.raises(InputError, match="not a results file"):
            Results.open(out, TINY)
    with pytest.raises(InputError, match="is a folder"):
        Results.open(tmp_path, TINY)


def test_an_unknown_case_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"'dance'; choose from training-uniform, .*draws"):
        chosen(("draws", "dance"))
    done = command("bench", "--out", tmp_path / "r.json", "--cases", "dance")
    assert done.returncode == 2
    assert "unknown case 'dance'" in done.stderr
    assert not (tmp_path / "r.json").exists()


def test_the_command_writes_and_prints_the_table(tmp_path: Path) -> None:
    out = tmp_path / "results.json"
    line = ("bench", "--out", out, "--scale", "tiny", "--device", "cpu", "--cases", "draws")
    done = command(*line)
    assert done.returncode == 0, done.stderr
    assert "TFLOP/s" in done.stdout
    assert "[1/1] draws" in done.stdout
    assert set(json.loads(out.read_text())["cases"]) == {"draws"}
    assert "measured on" in command(*line).stdout
    listed = command("bench", "list").stdout
    assert all(name in listed for name in CASES)


# Projections, by hand.


@pytest.mark.parametrize(
    ("gpus", "network", "compute", "exchange", "waited", "bound"),
    [
        (1, Network(), 8.0, 0.0, 0.0, "arithmetic"),
        # 2 * 3/4 * 4 * 1000 bytes over 10,000 bytes a second: 0.6 s beside 2/3 of one second.
        (4, Network(inside=1e4, between=1.0), 2.0, 0.6, 0.0, "arithmetic"),
        # 2 * 15/16 * 4000 bytes over 1000 a second: 7.5 s, of which 2/3 of half a second is hidden.
        (16, Network(1e9, 1e3, machine=8), 0.5, 7.5, 7.5 - 1 / 3, "exchange of gradients"),
    ],
)
def test_projection(
    gpus: int, network: Network, compute: float, exchange: float, waited: float, bound: str
) -> None:
    found = project(Job(1000, steps=10, batch_tokens=800), gpus, 100.0, 100, network)
    seconds = found.compute, found.exchange, found.waited
    assert seconds == pytest.approx((compute, exchange, waited))
    assert found.gpu_hours == pytest.approx(gpus * 10 * (compute + waited) / 3600)
    assert found.bound == bound
