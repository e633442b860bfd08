"""Experiments of a square each, to try the command by."""

from experiments.experiment import Experiment, Plan
from experiments.job import Store
from experiments.table import Column, Row, Table, Value
from tests.experiments.test_jobs import Count


def squares(number: int) -> Experiment:
    def tables(store: Store) -> list[Table]:
        done = store.result(Count(number))
        value = Value(None if done is None else done["result"]["square"], None, 0)
        return [Table("Squares", ("number",), (Column("square"),), (Row(("n",), (value,)),))]

    plan = Plan((Count(number),), tables)
    return Experiment(f"square-{number}", "a square", lambda _: plan)
