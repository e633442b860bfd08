"""The page on speed, docs/speed.md: measured figures with the reasons behind them."""

from cwdfm.model.presets import preset
from cwdfm.model.transformer import DiT
from experiments.bench.projection import Job, Network, Projection, project
from experiments.benchmarks.markdown import outline, table
from experiments.benchmarks.speed_measured import VOCAB, fact, newest, number, share
from experiments.benchmarks.speed_profile import profiles, recorded

DATA_BYTES = 2  # of a token in memory-mapped windows


def bench() -> str:
    """All cases with all their ways."""
    parts = []
    for result, lines in newest().values():
        what = result["cases"][lines[0]["case"]]["record"]["what"]
        rows = [
            [
                line["way"],
                number(line["ms"]) if line["ms"] is not None else line["note"],
                number(line["memory_gb"]),
                number(line["bound_ms"]),
                share(line["reached"]),
                "" if line["times_first"] is None else f"{line['times_first']:.2f}",
                "; ".join(
                    [
                        *(f"{n.replace('_', ' ')} {number(x)}" for n, x in line["facts"].items()),
                        *([line["note"]] if line["note"] and line["ms"] is not None else []),
                    ]
                ),
            ]
            for line in lines
        ]
        head = ["", "ms", "GB", "bound, ms", "reached", "times the first", "more"]
        made = result["cases"][lines[0]["case"]]["made"]
        parts.append(
            f"### {lines[0]['case']}\n\n{what[:1].upper()}{what[1:]}.\n\n{table(head, rows)}\n\n"
            f"Revision `{made['revision']}`, {made['date'][:10]}; ceilings of that run "
            f"{result['ceilings']['flops'] / 1e12:,.0f} TFLOP/s and "
            f"{result['ceilings']['bytes'] / 1e12:.2f} TB/s."
        )
    return "\n\n".join(parts)


def goals() -> str:
    """What was to be reached, and what was."""
    ratio = {case: [line["times_first"] for line in lines] for case, (_, lines) in newest().items()}
    memory = fact("sampling-step", 1, "memory_gb") / fact("sampling-step", 0, "memory_gb")
    uniform, mask = ratio["training-uniform"], ratio["training-mask"]
    at_least: list[tuple[str, float, float]] = [
        ("training, uniform source: times the peer as its users have it", 1.5, uniform[1]),
        ("training, uniform source: times the peer with head and loss compiled", 1.5, uniform[2]),
        ("training, mask source: times the peer as its users have it", 1.8, mask[1]),
        ("training, mask source: times the peer with head and loss compiled", 1.8, mask[2]),
        ("a sampling step, uniform source: times the peer", 7, ratio["sampling-step"][1]),
        ("a sampling step, uniform source: the peer's memory over ours", 8, memory),
        (
            "1,024 steps, mask source: times the peer (projected from 8 of its steps)",
            12,
            ratio["samples-mask"][1],
        ),
    ]
    at_most: list[tuple[str, float, float]] = [
        ("4,096 steps over 1,024, mask source", 1.6, ratio["samples-more-steps"][1]),
        (
            "1,024 steps with Neighbor weights over Euler's, mask source",
            1.03,
            ratio["neighbor-mask"][1],
        ),
        ("a Neighbor-weighted step, uniform source, ms", 30, fact("neighbor-uniform", 1, "ms")),
        (
            "the corruption of a micro-batch by the context-weighted path, ms",
            1,
            fact("context-path", 0, "ms"),
        ),
        (
            "QM9, 92M, 25,000 steps, minutes",
            35,
            fact("training-molecules", 0, "minutes_for_25000_steps"),
        ),
        ("float64 draws over float32 (one kernel does both)", 1.1, ratio["draws"][1]),
    ]
    for case, what in {
        "training-context": "on the context-weighted path over one on the mixture path",
        "training-scaled": "by scaled cross-entropy over one by cross-entropy",
    }.items():
        if case in ratio:
            at_most.append((f"a training step of text {what}", 1.01, ratio[case][1]))
    rows = [
        [what, f"at least {goal:g}", number(found), "yes" if found >= goal else "no"]
        for what, goal, found in at_least
    ]
    rows += [
        [what, f"at most {goal:g}", number(found), "yes" if found <= goal else "no"]
        for what, goal, found in at_most
    ]
    return table(["", "goal", "measured", "met"], rows)


def projection() -> str:
    """The paper's run on OpenWebText from one GPU's speed."""
    parameters = sum(p.numel() for p in DiT(preset("base", VOCAB)).parameters())
    job, network = Job(parameters), Network()
    speed = fact("training-uniform", 0, "tokens_per_second")
    rows = []
    for gpus in (1, 8, 64):
        p: Projection = project(job, gpus, speed, 64 * 1024)
        rows.append(
            [
                str(gpus),
                f"{p.hours / 24:,.1f}",
                f"{p.gpu_hours:,.0f}",
                f"{1e3 * p.compute:,.0f}",
                f"{1e3 * p.exchange:.1f}",
                f"{1e3 * p.waited:.1f}",
                p.bound,
            ]
        )
    head = [
        "GPUs",
        "days",
        "GPU hours",
        "compute, ms",
        "exchange, ms",
        "waited for, ms",
        "bound by",
    ]
    reading = job.batch_tokens * DATA_BYTES / (job.batch_tokens / 64 / speed)
    return (
        f"The paper trains {job.steps:,} steps of {job.batch_tokens:,} tokens. From "
        f"{speed / 1e3:,.0f}k tokens/s on one GPU ([training-uniform](#training-uniform)):\n\n"
        + table(head, rows)
        + f"\n\nCompute and exchange are of one step. Gradients, {4 * parameters / 1e9:.2f} GB in "
        f"float32, go round a ring at {network.inside / 1e9:.0f} GB/s within a machine of "
        f"{network.machine} and at {network.between / 1e9:.0f} GB/s between machines (datasheets, "
        f"not measured), beside the last micro-batch's backward pass. On 64 GPUs a GPU has 8 "
        f"sequences of a step, a micro-batch of an eighth of the measured one: the projection "
        f"takes it to run at the same speed, which smaller products will not quite do. Data is no "
        f"bound: 64 GPUs together read {reading / 1e6:.0f} MB/s of tokens."
    )


def page() -> str:
    """All of it."""
    body = _body()
    return f"{_introduction()}## Contents\n\n{outline(body)}\n\n{body}"


def _sources() -> str:
    """Where the numbers come from."""
    return "results/bench" + (" and results/profile.json" if recorded() is not None else "")


def _introduction() -> str:
    """What was measured, and against whom."""
    settings = newest()["training-uniform"][0]["settings"]
    return f"""# Speed

Generated by `python -m benchmarks.report` from the files of {_sources()}. Each table names the
revision it was measured at.

`python -m experiments bench --out speed.json` measures the same on your machine: training, sampling and their
pieces, each beside the bound that its matrix products and bytes set at the ceilings of the same
run, and beside `flow_matching` where that is installed (it is no dependency, and its licence
forbids more than a comparison). Here: one {settings["device"]}, torch {settings["torch"]},
flow_matching {settings["flow_matching"]}, bf16.

The peer brings path, loss and solver; the network is the same transformer for both, compiled. In
training the peer's has plain PyTorch inside; its users call the loss as it is, which is the first
comparison, and could compile head and loss as well, which is the second.

"""


def _body() -> str:
    """The sections."""
    return f"""## Goals

"Times the peer" is its time over ours, "over" the ratio of two times of ours.

{goals()}{profiles()}

## What is done about it

Training:

- The head's loss never stores logits of all tokens: a chunk's logits are computed once, and
  become their own gradient in place, so there are three products and not four
  (`kernel/head_cross_entropy.py`). A row of logits is read once, held in registers and written
  once, with the next row on its way (`kernel/head_rows.py`).
- What is added to the stream, its gate and the norm behind it are one pass forward and one backward
  (`kernel/adaptive_norm.py`); rotation is one kernel on packed q, k, v (`kernel/rotary.py`); up
  to 64 tokens attention with its rotation is one kernel (`kernel/short_attention.py`).
- Batches are corrupted, and the loss's rows are counted, on a stream of their own beside the step
  before (`train/ahead.py`).
- With a mask source only masked tokens reach the head.
- Small networks take longer to launch than to run: without dropout and micro-batches, the trunk's
  forward and backward passes are CUDA graphs (`train/graphed.py`).

Sampling:

- Jumps are drawn before the model is asked, so the head works where something jumps, draws
  without logits in memory (`kernel/head_draw.py`), and behind the last attention so does the
  trunk (`DiT.end`).
- With a mask source the reveals of all steps are drawn first. Sequences then go from reveal to
  reveal without keeping step, and steps without a reveal cost nothing (`solver/visit.py`).
- The trunk is a CUDA graph with weights cast once (`model/record.py`). In half precision and
  without a nucleus a step of many jumps, or of a plan of reveals, waits for nothing: rows are
  counted while the trunk runs (`model/rows.py`), and whether logits were numbers is learned later
  (`told.py`). Elsewhere the host waits for the rows, or looks at the logits.

## What bounds the rest

Training: see above. The bound in the tables below counts products and attention alone, at the
speed of large square products, and nothing for the passes between them. What the peer gains by
compiling head and loss its users could gain too.

The context-weighted path alone is bound by latency: one draw of Algorithm 1 waits for the one
before, and a warp alone on its multiprocessor waits for every instruction. In training it runs
beside the step before, on a stream of its own, and costs nothing to speak of
([training-context](#training-context)).

## The paper's run

{projection()}

## All measurements

- **ms**: the median of three; of 20 for the corruption by a path; whole samples were drawn once.
- **bound**: what its matrix products and bytes take at the ceilings of the same run; **reached**:
  bound over time.
- **times the first**: its time over that of the first line.
- **base**: the paper's transformer; **V**: how many tokens the vocabulary has.
- **rows**: coordinates whose logits a step needs; **evaluations**: steps in which a sequence needs
  the model, on average.

{bench()}
"""
