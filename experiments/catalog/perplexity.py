"""Test perplexity: the bound on corpora the models were not trained on."""

from experiments import paper
from experiments.cell import Cell, flow
from experiments.experiment import Plan
from experiments.scale import Scale, size
from experiments.store import Store
from experiments.table import Column, Row, Table, Value
from experiments.tasks.score import TestLikelihood

# Those of the paper, and a smaller one with the same articles as WikiText-103.
TEST_CORPORA = (*paper.TEST_CORPORA, "wikitext-2")
SAME_ARTICLES = (
    "`wikitext-2` has the same test articles as `wikitext-103`, with a smaller vocabulary: all "
    "other words are `<unk>`."
)
ERRORS = "One run per training; ± is one standard error."
OWN = "The paper's columns are for models of OpenWebText at its own scale."
BEYOND = (
    "A bound may exceed the size of the vocabulary: a token that the network regards as noise "
    "costs more than a uniform guess."
)


def plan(scale: Scale) -> Plan:
    """The table; at paper scale only with the paper's corpora."""
    tests = paper.TEST_CORPORA if scale == "paper" else TEST_CORPORA

    def task(name: str, source: str, test: str) -> TestLikelihood:
        fields = flow(source, "sce" if "SCE" in name else "ce")
        return TestLikelihood(Cell("text", scale, fields).train(), test, size("text", scale).rows)

    def tables(store: Store) -> list[Table]:
        rows = []
        for (name, source), reported in paper.TESTS.items():
            values = []
            for test in tests:
                found = store.result(task(name, source, test)) or {}
                values.append(Value(found.get("perplexity"), found.get("perplexity_error"), 2))
            theirs = tuple(Value(value, None, 2) for value in reported)
            rows.append(Row((name, source), tuple(values), theirs))
        columns = tuple(Column(f"{test}, at most", False) for test in tests)
        known = columns[: len(paper.TEST_CORPORA)]
        same = () if known == columns else (SAME_ARTICLES,)
        labels, notes = ("model", "source"), (*same, BEYOND, ERRORS, OWN)
        return [Table("Test perplexity", labels, columns, tuple(rows), known, notes)]

    tasks = [task(*key, test) for key in paper.TESTS for test in tests]
    return Plan(tuple(tasks), tables)
