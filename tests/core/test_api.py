"""Every call of the public API raises InputError or returns a valid result.

Arguments are replaced by values of the wrong kind (`tests/support/api_calls.py`). Run many calls
with `pytest tests/core/test_api.py --hypothesis-profile long`; `experiments.studies.api_calls`
counts and records them.
"""

import inspect
import warnings
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

import cwdfm
from tests.support.api_calls import JUNK, Call, calls

ANY_VALUE = st.one_of(
    st.sampled_from(JUNK), st.integers(), st.floats(), st.text(max_size=8), st.binary(max_size=4)
)
NO_CALLS = {
    *("Cosine", "EntropyInverse", "Linear", "bundled_models"),  # no arguments
    *("Bound", "Info", "LanguageModel", "PathSample", "Pretrained", "Samples", "State"),  # results
    *("ContextWeight", "Correction", "Guidance", "Loss", "Model", "Path", "Postprocess"),
    *("PredictionWeight", "Schedule", "Solver", "Source", "SplitModel", "Weight"),  # interfaces
    "InputError",
}


@st.composite
def call_with_arguments(draw: st.DrawFn) -> tuple[str, Call, dict[str, Any]]:
    name = draw(st.sampled_from(sorted(calls())))
    call = calls()[name]
    arguments = {key: draw(st.sampled_from(valid)) for key, valid in call.arguments.items()}
    for key in draw(st.lists(st.sampled_from(sorted(arguments)), max_size=2, unique=True)):
        value = draw(ANY_VALUE)
        if call.accepts(key, value):
            arguments[key] = value
    return name, call, arguments


def outcome(drawn: tuple[str, Call, dict[str, Any]]) -> str:
    """Make a call: "refused" with an InputError, or "valid" with a valid result."""
    _, call, arguments = drawn
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # an infinite bound, another length than in training
        try:
            result = call.function(**arguments)
        except cwdfm.InputError:
            return "refused"
    call.check(result, arguments)
    return "valid"


@given(call_with_arguments())
def test_calls_are_refused_or_valid(drawn: tuple[str, Call, dict[str, Any]]) -> None:
    outcome(drawn)


def test_valid_arguments_are_accepted() -> None:
    for name, call in calls().items():
        arguments = {key: valid[0] for key, valid in call.arguments.items()}
        try:
            call.check(call.function(**arguments), arguments)
        except cwdfm.InputError as error:
            raise AssertionError(name) from error


def test_every_export_is_called() -> None:
    exported = {
        name
        for name, value in vars(cwdfm).items()
        if not name.startswith("_") and callable(value) and not inspect.ismodule(value)
    }
    assert exported - NO_CALLS <= {name.removesuffix("()") for name in calls()}
