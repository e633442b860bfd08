"""What a command brings along for its jobs: wrong places are refused, what none reads is told."""

from collections.abc import Collection, Iterable

from cwdfm.metrics.text_model import locate_model
from experiments.job import Job, Resources
from experiments.jobs import corpus_of
from experiments.places import check_corpus
from experiments.scores import TestLikelihood, Text


def check_brought(brought: Resources, given: Collection[str]) -> None:
    """Refuse places among the `given` fields of resources that are wrong, whoever reads them.

    Jobs that are not to be done here may: the command that does them names the same places.
    """
    for name in ("molecules", "text"):
        if name in given:
            check_corpus(brought.corpus(name), text=name == "text")
    for _, place in brought.tests:
        check_corpus(place, text=True)
    if brought.eval_model is not None:
        locate_model(brought.eval_model)  # a hub name is let through


def unread(brought: Resources, given: Collection[str], jobs: Iterable[Job]) -> list[str]:
    """The flags of `given` fields of resources that no job reads."""
    order = list(jobs)
    read = {corpus_of(job) for job in order}
    tests = {job.test for job in order if isinstance(job, TestLikelihood)}
    judged = any(isinstance(job, Text) for job in order)
    found = [f"--{name}" for name in ("molecules", "text") if name in given and name not in read]
    found += [] if brought.eval_model is None or judged else ["--eval-model"]
    return found + [f"--tests {name}" for name, _ in brought.tests if name not in tests]
