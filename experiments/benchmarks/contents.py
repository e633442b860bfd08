"""The beginning of docs/results.md: how to read it, and what it leads to."""

from collections import Counter
from collections.abc import Iterable
from functools import cache
from typing import get_args

from experiments.benchmarks.markdown import anchor, headings, table
from experiments.claims.judging import Claim, Word
from experiments.claims.page import all_claims, heading
from experiments.measured import measured

READING = """## How to read it

- **Text.** *gen. PPL*, generative perplexity: how surprising a language model that saw none of this
  (the judge, SmolLM2-135M) finds the samples. *Entropy*: of the tokens within a sample, in bits;
  far below the data's, samples repeat themselves. *MAUVE*: how alike samples and held-out text are
  to the judge, 1 at best. *held-out PPL*: how well the network itself predicts text that it was not
  trained on. A low perplexity is worth something at an equal entropy alone.
- **Molecules.** Of 1,024 samples, *valid* ones can be read as molecules, *unique* is how many
  different molecules these are, *novel* how many of those are not in the training data.
- **Solvers.** *Euler* moves every token at the same rate. *Neighbor* weights (radius r, scale s)
  prefer tokens whose neighbours are there already, *Entropy* weights (beta) those that the network
  is sure of. *Counted* ones move as many tokens in a step as Euler does. A *source* is what
  sampling begins with: masks, or tokens drawn uniformly.
- **Trainings.** *CE*: cross-entropy; *SCE*: the paper's scaled one; *NELBO*, *Bregman*: the losses
  it is compared with. A *mixture path* hides tokens at random, a *context path* by the weights.
- **The paper's numbers** have columns of their own, or stand at the right of a figure. They are of
  its own scale; ours are of small scale: 17M parameters on QM9, 94M on 63 MB of novels.
- **↑** more is better, **↓** less is better. **±**: below each table it is said of how many runs
  and samples a row is, and between what ± is a standard deviation. The row *data* is held-out data
  in the samples' place.
- **How sure.** Verdicts on the paper's claims weigh differences by their errors:
  [how](claims.md#how-a-verdict-is-reached).
- **Cost.** Behind each command is what its jobs took that are done, of an H200. Where n jobs had it
  at a time, each is charged 1/n of that time. Jobs that several experiments need count in each;
  runs that were done again since are not in it (results/repro_runs.json has them)."""


@cache  # takes seconds
def _judged() -> list[Claim]:
    return all_claims()


def verdicts(experiment: str) -> list[tuple[int, Claim]]:
    """The claims that an experiment shows, with their numbers on the page of claims."""
    return [(n, each) for n, each in enumerate(_judged(), 1) if experiment in each.experiments]


def claimed(experiment: str) -> str:
    """What the paper says of it, what is seen here, and the verdict: a table, or nothing."""
    rows = [
        [
            f"{claim.said} ({claim.where})",
            claim.verdict.effect or "",
            f"[{claim.verdict.word}](claims.md#{anchor(heading(n, claim))})",
        ]
        for n, claim in verdicts(experiment)
    ]
    if not rows:
        return ""
    return table(["the paper says", "seen here", "verdict"], rows) + "\n\n"


def overview(sections: Iterable[tuple[str, str, str]]) -> str:
    """A line for each experiment: name, place in the paper, and its section in Markdown."""
    minutes = measured().experiments
    rows = []
    for name, place, section in sections:
        first, *tables = (title for _, title in headings(section))
        found = Counter(claim.verdict.word for _, claim in verdicts(name))
        rows.append(
            [
                place or "beyond",
                f"[`{name}`](#{anchor(first)})",
                "; ".join(f"[{title}](#{anchor(title)})" for title in tables),
                ", ".join(f"{word}: {found[word]}" for word in get_args(Word) if word in found),
                f"{minutes[name]:,.1f}" if name in minutes else "",
            ]
        )
    return table(["in the paper", "experiment", "tables", "claims", "GPU minutes"], rows)
