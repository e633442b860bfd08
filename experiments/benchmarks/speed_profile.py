"""Where the time of a step goes, and what bounds it: sections of the page on speed.

From results/profile.json (`benchmarks.profile`), once that is there.
"""

import json
from pathlib import Path

from cwdfm.model.presets import preset
from experiments.benchmarks.markdown import Result, table
from experiments.benchmarks.speed_measured import VOCAB, fact, newest, number

FILE = Path(__file__).parents[2] / "results" / "profile.json"


def recorded() -> Result | None:
    """The profile, if there is one."""
    return json.loads(FILE.read_text()) if FILE.exists() else None


def profiles() -> str:
    """Where the time goes, if it was recorded."""
    if (result := recorded()) is None:
        return ""
    work = result["work"]
    kinds = sorted(
        {kind for part in work.values() for kind in part["kinds"]},
        key=lambda kind: (
            kind == "all else",
            -sum(part["kinds"].get(kind, 0.0) for part in work.values()),
        ),
    )
    rows = [[kind, *(number(part["kinds"].get(kind)) for part in work.values())] for kind in kinds]
    rows.append(["kernels together", *(number(part["busy_ms"]) for part in work.values())])
    clock = [
        number(part["ms"]) if name.startswith("training") else "" for name, part in work.items()
    ]
    rows.append(["by the clock (of sampling: see [sampling-step](#sampling-step))", *clock])
    return (
        "\n\n## Where the time goes\n\nMilliseconds of a training step of one micro-batch (text, "
        "molecules), and of a sampling step, by kind of kernel.\n\n"
        + table(["", *work], rows)
        + f"\n\n{clocks(result)}\n\n{limits(work)}"
        + f"\n\n`{result['command']}`, revision `{result['revision']}`, {result['date'][:10]}, "
        f"{result['hardware']['gpu']}, torch {result['versions']['torch']}."
    )


def clocks(result: Result) -> str:
    """Why a training step on molecules has two times on this page."""
    part, median = result["work"]["training, molecules"], fact("training-molecules", 0, "ms")
    return (
        f"By the clock is the mean of {result['config']['repeats']} steps, one right after the "
        f"other. On molecules it is {part['ms'] - part['busy_ms']:.0f} ms more than the kernels: "
        f"so long the GPU is idle. The same step takes {median:.0f} ms in "
        "[training-molecules](#training-molecules): the median of three steps, each begun on an "
        "idle GPU. One slow step lifts a mean and not a median; whether there was one is not "
        "recorded."
    )


def between_products(rows: float) -> float:
    """Bytes that training one micro-batch must move between its products, K = rows with a loss.

    For T tokens, width D, L blocks, MLPs of r D: norms with gates and additions read and write the
    stream in float32 and a branch each way in half precision (12 T D there, 18 back, 2 L + 1
    times), gelu 4 r T D and 6 r T D, rotation q and k (8 T D each way), the head's softmax 4 K V.
    """
    config, tokens = preset("base", VOCAB), 64 * 1024
    norms = (2 * config.depth + 1) * 30
    blocks = config.depth * (10 * config.mlp_ratio + 16)
    return (norms + blocks) * tokens * config.width + 4 * rows * VOCAB


def limits(work: Result) -> str:
    """What a training step would take if all passes between products ran at the speed of copies."""
    said = []
    for source, share in (("uniform", 1.0), ("mask", 2 / 3)):
        kinds = work[f"training, {source}"]["kinds"]
        products = kinds["matrix products"] + kinds["attention"]
        speed = newest()[f"training-{source}"][0]["ceilings"]["bytes"]
        passes = 1e3 * between_products(share * 64 * 1024) / speed
        least = products + passes
        theirs = [fact(f"training-{source}", way, "micro_batch_ms") for way in (1, 2)]
        said.append(
            f"- {source} source: products and attention {products:.0f} ms as measured, "
            f"{passes:.0f} ms for the passes between them, {least:.0f} ms together; measured "
            f"{fact(f'training-{source}', 0, 'micro_batch_ms'):.0f} ms. At best "
            f"{theirs[0] / least:.2f} times the peer as its users have it, "
            f"{theirs[1] / least:.2f} times the one with head and loss compiled."
        )
    return (
        "What bounds training: products and attention are cuBLAS's and cuDNN's, the same that the "
        "peer runs. The passes between them move their bytes, at best at the speed of copies. With "
        "these passes, and nothing for embedding and optimiser, a micro-batch takes at least\n\n"
        + "\n".join(said)
    )
