"""The corpora and the evaluator LM of a command, which are checked before any task starts."""

from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace

from cwdfm.errors import InputError
from cwdfm.metrics.text_model import locate_model
from experiments.catalog.perplexity import TEST_CORPORA
from experiments.cli.options import Options
from experiments.store import Store
from experiments.tasks.base import Corpus, Resources, Task
from experiments.tasks.corpora import check_corpus, is_on_hub
from experiments.tasks.score import TestLikelihood, Text, evaluator_fingerprint, evaluator_key
from experiments.tasks.train import Train, load_corpus
from experiments.toy_evaluator import toy_evaluator

SMOKE_TEXT = "python-topics"  # a bundled corpus
CORPORA: tuple[Corpus, ...] = ("molecules", "text")


def with_smoke_corpora(given: Resources) -> Resources:
    """At smoke scale, use a bundled corpus if no text corpus is given."""
    tests = dict.fromkeys(TEST_CORPORA, SMOKE_TEXT) | dict(given.tests)
    return replace(given, text=given.text or SMOKE_TEXT, tests=tuple(sorted(tests.items())))


def with_smoke_evaluator(given: Resources, store: Store, todo: Iterable[Task]) -> Resources:
    """At smoke scale, use a toy LM if no evaluator is given."""
    if given.eval_model is not None or not any(isinstance(task, Text) for task in todo):
        return given
    try:
        return replace(given, eval_model=toy_evaluator(store.root / "toy-evaluator"))
    except InputError as error:
        print(f"note: no text scores: {error}")
        return given


def check_given(given: Resources, flags: Collection[str]) -> None:
    """Raise an error for paths that do not exist or contain the wrong kind of data.

    flags: the fields that the command line sets.
    """
    for name in CORPORA:
        if name in flags:
            check_corpus(given.corpus(name), text=name == "text")
    for _, path in given.tests:
        check_corpus(path, text=True)
    if given.eval_model is not None:
        locate_model(given.eval_model)  # accepts any hub name


def unused_flags(given: Resources, flags: Collection[str], tasks: Sequence[Task]) -> list[str]:
    """The flags for corpora and evaluator that no task uses."""
    used = {task.corpus_kind for task in tasks}
    tests = {task.test for task in tasks if isinstance(task, TestLikelihood)}
    unused = [f"--{name}" for name in CORPORA if name in flags and name not in used]
    if given.eval_model is not None and not any(isinstance(task, Text) for task in tasks):
        unused.append("--eval-model")
    return unused + [f"--tests {name}" for name, _ in given.tests if name not in tests]


def check_fingerprints(
    store: Store, tasks: Iterable[Task], options: Options, resources: Resources
) -> None:
    """Raise an error if the results in the store come from a different corpus or evaluator.

    A dry run downloads nothing and does not write prepared data.
    """
    order = list(tasks)
    given: dict[Corpus, bool] = {
        "molecules": options.molecules != Options.molecules,
        "text": options.text is not None,
    }
    lengths = {(task.corpus, task.recipe.length) for task in order if isinstance(task, Train)}
    for corpus, length in sorted(lengths):
        if not given[corpus] or not store.has_fingerprint(f"{corpus}-{length}"):
            continue
        if options.dry_run and is_on_hub(path := resources.corpus(corpus)):
            print(f"note: {path} is not downloaded in a dry run and was not checked")
        else:
            load_corpus(corpus, length, store, resources, "read" if options.dry_run else True)
    if options.eval_model is not None:
        for name in {task.judge for task in order if isinstance(task, Text)}:
            if store.has_fingerprint(evaluator_key(name)):
                fingerprint = evaluator_fingerprint(options.eval_model)
                store.check_fingerprint(evaluator_key(name), fingerprint)
