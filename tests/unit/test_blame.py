"""Which step failed is known to the process that asked, whatever a user's stage raises."""

from __future__ import annotations

import pickle

import pytest

from sigmatrace.blame import blamed
from sigmatrace.errors import PipelineError
from sigmatrace.stages.base import Stage


class TwoArgumentsError(Exception):
    """Cannot be pickled back: it is made of other arguments than it hands on."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{code}: {text}")


class Own(Stage):
    name = "own"


@pytest.mark.parametrize(
    ("error", "cause"), [(TwoArgumentsError(4, "two"), RuntimeError), (ValueError("4: two"), None)]
)
def test_what_an_own_stage_raises_comes_back(error: Exception, cause: type | None) -> None:
    with pytest.raises(PipelineError) as found, blamed(Own(), "summarize of partition 0"):
        raise error
    assert "stage own failed in summarize of partition 0" in str(found.value)
    assert f"{type(error).__name__}: 4: two" in str(found.value)
    back = pickle.loads(pickle.dumps(found.value.__cause__))
    assert type(back) is (cause or type(error)) and "4: two" in str(back)
