"""Tables of samplers that were searched: what they are, what they cost, what they give."""

from itertools import product
from typing import Any

from experiments.benchmarks.markdown import Result, origin, table

DESCRIBED = ("steps", "share, trust", "temperature")
MENDED = ("temperature", "steps", "mend", "noise", "trust", "again")


def both(row: Result) -> str:
    return f"{row['valid']:.0f} / {row['novel']:.0f}"


def commands(result: Result) -> str:
    """By which the samples were drawn."""
    return " and ".join(f"`{each}`" for each in sorted({row["command"] for row in result["rows"]}))


def bars(result: Result) -> str:
    """What a table of bars shows."""
    return (
        f"{chosen(result)} A bar of plausibility is drawn afterwards, so that the share beside it "
        "is left, and counts of these are scaled up to 1,024, of which a few fewer would be "
        "unique; evaluations are model calls for each sample left."
    )


def chosen(result: Result) -> str:
    """On what the settings of such a table were chosen."""
    return (
        f"Valid / novel of 1,024, counted among {counted(result)} samples of one seed, on which "
        "the choice was made: with another seed it would give less."
    )


MENDING = (
    "Valid / novel of 1,024, by Euler's solver and after mending, at most 80 rounds with the "
    "uniform source, 10 with the mask source, where each takes 1 / share evaluations. Share: of "
    "the tokens that the network takes for noise. Trust: the least chance of a token that is left "
    "alone. Temperature: of draws in a round. Evaluations: model calls a sequence. Counts among "
    "1,024 samples scatter by about 15."
)
AS_MENDING = "Columns are those of [mending](#mending); counts scatter by about 15."


def counted(result: Result) -> str:
    """How many samples."""
    return " or ".join(f"{n:,}" for n in sorted({row["samples"] for row in result["rows"]}))


def searched_origin(result: Result) -> str:
    revisions = ", ".join(f"`{r}`" for r in sorted({row["revision"] for row in result["rows"]}))
    return f"revision {revisions}; scored by {origin(result)}"


def mended_table(result: Result) -> str:
    rows = []
    barred = any(row["setting"].get("accept") for row in result["rows"])
    for row in sorted(
        result["rows"], key=lambda row: (row["model"], *(row["setting"][k] for k in MENDED))
    ):
        bar, glance = row["setting"].get("accept"), row["setting"].get("glance")
        read = f" at share {glance:g}" if glance else ""
        rows.append(
            [
                row["model"],
                *described(row["setting"]),
                *([f"{bar:g}{read}" if bar else ""] if barred else []),
                f"{row['evaluations']:.1f}",
                f"{row['valid']:g} / {row['novel']:g}",
            ]
        )
    bars = ["least plausibility"] if barred else []
    return table(["model", *DESCRIBED, *bars, "evaluations", "valid / novel"], rows)


def described(setting: dict[str, Any]) -> list[str]:
    """A sampler's steps and mending, in the columns of DESCRIBED."""
    hot = "" if setting["temperature"] == 1 else f", temperature {setting['temperature']:g}"
    weights = "" if setting["solver"] == "euler" else f", {setting['solver']}"
    steps = f"{setting['steps']}{weights}{hot}"
    if not setting["mend"]:
        return [steps, "", ""]
    return [steps, f"{setting['noise']:g}, {setting['trust']:g}", f"{setting['again']:g}"]


def barred_table(result: Result) -> str:
    """For every model and least number of valid ones, the setting and bar with most novel ones."""
    found = []
    for row in result["rows"]:
        whole = {"share": 1.0, "least": 0.0, "valid": row["valid"], "novel": row["novel"]}
        found += [(row, kept) for kept in [whole, *row.get("accepting", [])]]
    rows = []
    for model, least in product(sorted({row["model"] for row in result["rows"]}), (970, 980, 990)):
        enough = [pair for pair in found if pair[0]["model"] == model and pair[1]["valid"] >= least]
        row, kept = max(enough, key=lambda pair: pair[1]["novel"])
        rows.append(
            [
                model,
                str(least),
                *described(row["setting"]),
                f"{kept['least']:.4f}, {kept['share']:.0%}" if kept["share"] < 1 else "",
                f"{row['evaluations'] / kept['share']:.1f}",
                both(kept),
            ]
        )
    head = ["model", "at least", *DESCRIBED, "bar, accepted", "evaluations", "valid / novel"]
    return table(head, rows)
