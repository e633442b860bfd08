"""Claims about what is exact, what it costs, and what context does."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from itertools import pairwise

from experiments import paper
from experiments.benchmarks.markdown import Result
from experiments.benchmarks.speed_measured import fact, newest
from experiments.catalog import EXPERIMENTS
from experiments.claims.judging import (
    CLEAR,
    STORE,
    Claim,
    Measured,
    Missing,
    Verdict,
    met,
    number,
    read,
    tested,
)
from experiments.claims.on_text import short_runs
from experiments.claims.text_samples import longer
from experiments.scale import size

# Where no errors come in, a claim holds up to these; the page names them.
LINEAR = 10.0  # times the time for 8 times the length
LINEAR_AT_4 = 5.0  # and for 4 times
NOTHING = 0.03  # of the time of a step
FEW = 0.01  # of the updates
SATURATED, EARLY = 0.9, 1 / 3  # of the rise, and of the distances by which it is done


def exact() -> Iterator[Claim]:
    yield Claim(
        "Theorem 1",
        "Weights of mean 1 keep the law of the number of revealed tokens; if they read the reveal "
        "mask alone, in circular windows, they also keep every coordinate's probability of being "
        "revealed",
        "Samples of path and chain against the binomial law, several weights, and a biased one "
        "that must fail: tests/test_theorem1.py. Entropy weights keep the first alone, as the "
        "paper says. Revealed is what has jumped; tokens that equal those of x_1, of which the "
        "paper speaks, may do so by chance with a uniform source, from the start",
        Verdict("holds"),
        command="pytest tests/test_theorem1.py",
    )
    yield Claim(
        "section on sampling",
        "The solvers keep the law of the number of tokens that are updated in a step",
        "In the limit of small steps, as Theorem 1 has it. In a step of any size the update rule "
        "as written moves fewer, and leaves them to the last step; counted jumps, ours, move as "
        "many as without weights: tests/test_counted.py",
        Verdict("holds partly"),
        command="pytest tests/test_counted.py",
    )
    yield Claim(
        "appendix",
        "A context-weighted model has the usual bound on the likelihood, with terms weighed by "
        "alpha",
        "With a mask source, against exact likelihoods, and tight for the true posterior: "
        "tests/test_elbo.py. With a uniform source the weighted sum is no bound "
        "([method.md](method.md#losses)), and is refused",
        Verdict("holds partly", effect="with a mask source alone"),
        command="pytest tests/test_elbo.py",
    )
    yield from in_place()
    yield Claim(
        "abstract",
        "Tokens are still generated in any order",
        "Tokens given at any places are filled up by the conditional law, with weights too: "
        "tests/test_solver.py",
        Verdict("holds"),
        command="pytest tests/test_solver.py",
    )
    yield algorithm1()
    yield cost_of_weights()
    yield cost_of_scaling()


def algorithm1() -> Claim:
    """What the exact sampler of the context-weighted path costs, by length."""
    found = read("context_path")
    growth, seconds = found["growth_8192_over_1024"], found["seconds"]
    naive = seconds["1024"]["naive"] / seconds["256"]["naive"]
    return Claim(
        "Algorithm 1",
        "The context-weighted path is sampled without simulation, in O(N)",
        f"Exact. As written, each of up to N draws weighs all tokens: {naive:.1f} times the time "
        f"for 4 times the length. Neighbor weights have few values, so that tokens can be kept in "
        f"buckets, and a draw takes as long at any length ([method.md](method.md#algorithm-1)): "
        f"{growth:.1f} times the time for 8 times the length, and "
        f"{found['naive_over_buckets_1024']:.0f} times faster at 1,024 (CPU). Other weights are "
        f"drawn as written",
        met(
            growth <= LINEAR,
            naive <= LINEAR_AT_4,
            effect=f"{growth:.1f} times the time for 8 times the length (buckets), {naive:.1f} "
            f"times for 4 times the length (as written)",
        ),
        command="python -m benchmarks.context_path --out path.json",
    )


def cost_of_weights() -> Claim:
    """Of a sampling step."""
    mask = fact("neighbor-mask", 1, "times_first")
    uniform = fact("neighbor-uniform", 1, "times_first")
    return Claim(
        f"abstract, bold text, {paper.figure('nfe_vs_quality_uniform')}",
        "Neighbor weights cost nothing to speak of",
        f"H200: {100 * (mask - 1):+.0f}% with a mask source. With a uniform source every proposal "
        f"is needed: {uniform:.2f} times our Euler step, which asks only for those that jump. "
        f"flow_matching's Euler step, which asks for all, takes "
        f"{fact('sampling-step', 1, 'times_first'):.1f} times as long as ours. {_entropic()}",
        met(
            mask <= 1 + NOTHING,
            uniform <= 1 + NOTHING,
            effect=f"{100 * (mask - 1):+.0f}% (mask), {100 * (uniform - 1):+.0f}% (uniform)",
        ),
        command="python -m experiments bench --out bench.json --cases neighbor-mask neighbor-uniform",
    )


def cost_of_scaling() -> Claim:
    """Of a training step."""
    scaled = "Scaled cross-entropy keeps the efficiency of standard training"
    if "training-scaled" in newest():
        share = fact("training-scaled", 1, "times_first")
        told = f"H200: {share:.3f} times a step of text by cross-entropy"
        verdict = met(share <= 1 + NOTHING, effect=f"{100 * (share - 1):+.1f}% of a step")
    else:
        told = "`python -m experiments bench --cases training-scaled` is ready; there is no result of it yet"
        verdict = Verdict("not tested yet")
    command = "python -m experiments bench --out bench.json --cases training-scaled"
    return Claim("section on training", scaled, told, verdict, command=command)


def _entropic() -> str:
    """What Entropy weights cost, of which the paper does not speak apart; it decides nothing."""
    cases = {"mask": "entropy-mask", "uniform": "entropy-uniform"}
    if not newest().keys() >= set(cases.values()):
        return "What Entropy weights cost was not measured yet"
    told = [f"{fact(case, 1, 'times_first'):.2f} ({s} source)" for s, case in cases.items()]
    return (
        "Entropy weights ask for the predictions of all masked tokens: "
        f"{' and '.join(told)} times Euler's"
    )


def in_place() -> Iterator[Claim]:
    """Whether weights leave the law of samples as it is, by the error of a model that has none."""
    found = read("exact_target")
    most, samples = max(row["steps"] for row in found["rows"]), found["config"]["samples"]
    apart = {
        (row["source"], row["solver"].removesuffix("-weighted")): row["total_variation"]
        for row in found["rows"]
        if row["steps"] == most
    }
    for weights, covered in (("Neighbor", "Theorem 1"), ("Entropy", "Theorem 1 in part")):
        pairs = {s: (apart[s, "Euler"], apart[s, weights]) for s in ("mask", "uniform")}
        told = ", ".join(f"{a:.3f} to {b:.3f} ({source})" for source, (a, b) in pairs.items())
        yield Claim(
            f"introduction, bold text; {covered}",
            "Sampling may be altered in place, with any pretrained model and without fine-tuning: "
            f"{weights} weights",
            "With a mask source the true posterior leads to its target in whatever order. With a "
            "uniform source the posterior is that of the unweighted path, and weighted steps lead "
            "elsewhere, in the limit of small steps too ([method.md](method.md#what-we-found); "
            "tests/test_solver.py). Total variation from the target of a small model without "
            f"error, {most} steps, Euler to {weights}: {told}; exact draws show "
            f"{found['floor']:.3f}",
            met(
                *(b <= a + found["floor"] for a, b in pairs.values()),
                effect=f"distance from an exact target: {told}",
            ),
            command=f"python examples/exact_target.py --out . --samples {samples}",
        )


def locality() -> Iterator[Claim]:
    yield Claim(
        paper.figure("example"),
        "A word, Red, is much more predictable in the one of two sentences that has local context",
        "The sentences stand in the picture alone, which the paper's source does not have. What "
        "they are an example of is tested by the next two claims",
        Verdict("not testable here"),
    )
    for kind, where, said in (
        (
            "neighbors",
            f"abstract, bold text, {paper.figure('entropy_nll_boxplot')}",
            "falls with revealed neighbours (16 in view)",
        ),
        (
            "distance",
            paper.figure("entropy_nll_dist"),
            "grows with the distance to the nearest, and saturates early",
        ),
    ):
        said = f"Uncertainty of a masked token {said}"
        yield from tested(where, said, "context", partial(_both_runs, kind))


def _both_runs(kind: str) -> tuple[str, Verdict]:
    """By the longer run, whose numbers are told first, and by the one of `context`."""
    (job,) = EXPERIMENTS["context"].plan("small").jobs
    short = STORE.result(job)
    if short is None:
        raise Missing
    curves = {
        longer("mask"): read("text_small_mask")["config"]["context-mask"][kind],
        f"`context`, {short_runs()}": short["result"][kind],
    }
    found = {name: trend(curve, kind) for name, curve in curves.items()}
    told = ". ".join(f"{name}, mask source, {each.told}" for name, each in found.items())
    conditions = [each for one in found.values() for each in one.conditions]
    return told, met(*conditions, effect=next(iter(found.values())).effect)


@dataclass(frozen=True)
class Trend:
    """What a curve of uncertainty against context shows, and whether that is what is claimed."""

    told: str
    effect: str
    conditions: tuple[bool, ...]


def trend(curve: Result, kind: str) -> Trend:
    """Whether uncertainty falls with "neighbors", or grows with "distance" and early so."""
    back, risen = 0, True
    for name in ("entropy", "nll"):
        points = [
            Measured(value, error)
            for value, error in zip(curve[name], curve[f"{name}_error"], strict=True)
        ]
        if kind == "neighbors":
            points = points[::-1]  # so that it must rise
        back += sum(a.above(b) > CLEAR for a, b in pairwise(points))
        risen = risen and points[-1].above(points[0]) > CLEAR
    ends = [f"{curve[n][0]:.2f} to {curve[n][-1]:.2f}" for n in ("entropy", "nll")]
    told = (
        f"from {curve['bins'][0]} to {curve['bins'][-1]}: entropy {ends[0]} nats, NLL {ends[1]}; "
        f"of {2 * len(curve['bins']) - 2} steps between neighbouring points {back} go clearly "
        f"the other way"
    )
    conditions = [risen, risen and back == 0]
    if kind == "distance":
        reached = {name: _saturated(curve["bins"], curve[name]) for name in ("entropy", "nll")}
        told += f"; {SATURATED:.0%} of the way by a distance of {reached['entropy']} (entropy) and "
        told += f"{reached['nll']} (NLL)"
        conditions.append(risen and max(reached.values()) <= EARLY * curve["bins"][-1])
    return Trend(told, f"entropy {ends[0]} nats", tuple(conditions))


def _saturated(bins: list[int], values: list[float]) -> int:
    """By which bin most of a rise is done."""
    high = values[0] + SATURATED * (values[-1] - values[0])
    return next(b for b, value in zip(bins, values, strict=True) if value >= high)


def updates() -> Iterator[Claim]:
    def found() -> tuple[str, Verdict]:
        (table,) = EXPERIMENTS["updates"].plan("small").tables(STORE)
        euler, neighbor = (row.ours for row in table.rows)
        a, b, loops = number(euler[0]), number(neighbor[0]), number(neighbor[1])
        theirs, (more, few) = paper.UPDATES["Euler"][0], paper.UPDATES["Neighbor"]
        steps = size("text", "small").steps
        changed, looped = f"{a.value:.3f} to {b.value:.3f} updates a token", f"{loops.value:.2f}%"
        told = (
            f"Novels ({short_runs()}), uniform source, {steps} steps: {changed} (the paper: "
            f"{theirs.value} to {more.value}), {looped} of them loops (the paper: {few.value}%)"
        )
        effect = f"{changed}, {looped} loops"
        return told, met(b.above(a) > CLEAR, loops.value < 100 * FEW, effect=effect)

    said = "Neighbor weights change tokens more often, with few loops"
    yield from tested(paper.figure("token_corrections"), said, "updates", found)
