"""Sections of docs/results.md on the library itself: exact targets, costs, tests, repeated runs."""

from cwdfm.config import from_config
from cwdfm.solver_config import SolverChoice
from experiments.benchmarks.markdown import Result, origin, table
from experiments.benchmarks.run_scatter import named
from experiments.cell import weights_of


def exact_target(result: Result) -> str:
    steps = sorted({row["steps"] for row in result["rows"]})
    keys = dict.fromkeys((row["source"], row["solver"]) for row in result["rows"])
    value = {(r["source"], r["solver"], r["steps"]): r["total_variation"] for r in result["rows"]}
    rows = [[f"{s}: {v}", *(f"{value[s, v, k]:.4f}" for k in steps)] for s, v in keys]
    return (
        "## Solvers on an exact target\n\n"
        f"Total variation between {result['config']['samples']:,} samples and a target whose exact "
        f"posterior is the model; exact draws of that number show {result['floor']:.4f}. The model "
        "has no error, so all there is to see is the solver's. Neighbor weights have radius 1 and "
        "scale 2, Entropy weights beta 2, the corrector scale 2; in the lower pictures, of the "
        "order of reveals, Neighbor weights have scale 4.\n\n"
        + table(["source: solver", *(f"{k} steps" for k in steps)], rows)
        + "\n\n![error against steps, and order of reveals](../results/exact_target.png)\n\n"
        + origin(result)
    )


def context_path(result: Result) -> str:
    rows = []
    for n, row in result["seconds"].items():
        naive = f"{row['naive'] * 1e3:.0f}" if "naive" in row else ""
        rows.append([f"{int(n):,}", f"{row['buckets'] * 1e3:.1f}", naive])
    return (
        "## Algorithm 1 on a CPU\n\n"
        "Milliseconds to reveal half of the coordinates of 64 sequences.\n\n"
        + table(["N", "buckets", "naive"], rows)
        + f"\n\nN = 8,192 costs {result['growth_8192_over_1024']:.1f} times N = 1,024; the naive "
        f"loop costs {result['naive_over_buckets_1024']:.0f} times the buckets at N = 1,024. "
        f"A whole `ContextPath.sample` of 64 x 1,024, randomness included, takes "
        f"{result['path_sample_seconds'] * 1e3:.1f} ms.\n\n" + origin(result)
    )


def sampling_step(result: Result) -> str:
    rows = [
        [
            name,
            f"{row['seconds_a_step'] * 1e3:,.0f}",
            f"{row['peak_bytes'] / 2**20:,.0f}",
            f"{row['times_faster']:.1f}",
            f"{row['times_less_memory']:.1f}",
        ]
        for name, row in result["cases"].items()
    ]
    return (
        "## A sampling step at 50,257 tokens on a CPU\n\n"
        "Against `flow_matching`'s Euler solver with the same small model, float64 draws, each in "
        "a process of its own: ours over a whole run of 64 steps, the peer, whose steps all cost "
        "the same, over its first few. Memory is the rise of the resident set while sampling.\n\n"
        + table(["case", "ms a step", "peak MiB", "times faster", "times less memory"], rows)
        + "\n\n"
        + origin(result)
    )


def elbo_variance(result: Result) -> str:
    rows = [
        [
            name,
            f"{row['rmse']:.4f}",
            f"{row['mean_standard_error']:.4f}",
            f"{row['coverage_two_standard_errors']:.1%}",
        ]
        for name, row in result["rows"].items()
    ]
    return (
        "## Integrating the likelihood bound\n\n"
        f"Error of the bound in nats per token (truth {result['truth_nats']:.3f}) over "
        f"{result['config']['seeds']} seeds, the standard error it reports, and how often the "
        "truth lies within two of them.\n\n"
        + table(["uniform in", "error (rms)", "reported", "coverage"], rows)
        + "\n\n"
        + origin(result)
    )


def finetune(result: Result) -> str:
    rows = [
        [
            row["model"],
            f"{row['aromatic_share']:.0%}",
            *(f"{row['scores'][key]['mean']:.0f}" for key in ("valid", "unique", "novel")),
            f"{row['copied_share']:.0%}",
        ]
        for row in result["rows"]
    ]
    samples = result["rows"][0]["scores"]["samples"]
    brief = {k: v for k, v in result["config"].items() if k != "recipe"}
    return (
        "## Fine-tuning the model in the box\n\n"
        f"The tutorial's run: `{result['config']['box']}` on {result['config']['molecules']:,} "
        "molecules with an aromatic ring, "
        f"{result['config']['recipe']['steps']} steps, {result['training_seconds']:.0f} seconds. "
        f"Of {samples} samples, before and after: the share of the valid ones that are aromatic, "
        "the counts (novel: not in QM9's training part), and the share of the valid ones that are "
        "copies of those molecules.\n\n"
        + table(["", "aromatic", "valid", "unique", "novel", "copies"], rows)
        + "\n\n"
        + origin(result | {"config": brief})
    )


def demo(result: Result) -> str:
    return (
        "## The demo\n\n"
        f"`make demo` takes {result['seconds']:.0f} seconds on {result['config']['cores']} cores "
        "once everything is installed, the first preparation of QM9 included.\n\n" + origin(result)
    )


def gpu_tests(result: Result) -> str:
    failed = "".join(f" `{name}` {why}." for name, why in result["failed"].items())
    found = result["outcomes"]
    return (
        "## Tests on a GPU\n\n"
        f"{found.get('passed', 0)} passed, {found.get('failed', 0)} failed, "
        f"{found.get('skipped', 0)} were skipped.{failed}\n\n" + origin(result)
    )


def run_scatter(result: Result) -> str:
    rows, sampled = [], []
    for row in result["rows"]:
        losses = row["losses"]
        what = f"{row['corpus']}: {named(row)}"
        low, high = min(losses), max(losses)
        rows.append([what, str(len(losses)), f"{low:.4f}", f"{high:.4f}", f"{high - low:.4f}"])
        for sample in row["samples"]:
            perplexities, entropies = (
                ", ".join(f"{value:.{digits}f}" for value in sample[name] if value is not None)
                for name, digits in (("perplexities", 1), ("entropies", 2))
            )
            sampled.append([what, drawn_by(sample), perplexities, entropies])
    folders = [word for word in result["command"].split() if word.endswith("/jobs")]
    command = result["command"].replace(" ".join(folders), f"{folders[0]} ... {folders[-1]}")
    return (
        "## Runs of the same training\n\n"
        "Last validation losses of trainings that were done several times at small scale, with the "
        "same recipe and seed, by different revisions of the code (results/run_scatter.json names "
        "them); and sums on a GPU have no fixed order.\n\n"
        + table(["training", "runs", "lowest loss", "highest", "apart"], rows)
        + "\n\nSamples of several of these runs, on text, a number for each run:\n\n"
        + table(["training", "solver", "gen. PPL", "entropy, bits"], sampled)
        + "\n\n"
        + origin(result | {"command": command})
    )


def drawn_by(sample: Result) -> str:
    """A solver with the settings that it reads, and its steps."""
    choice = from_config(sample["choice"], {"SolverChoice": SolverChoice})
    settings = [one for each in weights_of([choice]).values() for one in each]
    return ", ".join([choice.solver, *settings, f"{sample['steps']:,} steps"])


def prepare(result: Result) -> str:
    rows = [
        [
            f"{case['workers']} worker{'s' if case['workers'] > 1 else ''}, "
            + (f"first {case['limit']} documents" if case["limit"] else "all documents"),
            f"{case['rows']:,}",
            f"{case['seconds']:.0f}",
            f"{max(case['peak_mib']):.0f}",
        ]
        for case in result["cases"]
    ]
    return (
        "## Preparing text\n\n"
        "63 MB of novels into windows of 512 GPT-2 tokens. Memory is the largest resident set "
        "among the processes; it does not grow with the corpus.\n\n"
        + table(["", "windows", "seconds", "peak MiB"], rows)
        + "\n\n"
        + origin(result)
    )
