"""What a stage returns is what it declares, or it is refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import numpy as np
import pyarrow as pa
import pytest

from sigmatrace.errors import PipelineError
from sigmatrace.partition import Partition
from sigmatrace.schema import Columns
from sigmatrace.stages.base import Stage, check_made


class Own(Stage):
    """Declares one column."""

    name: ClassVar[str] = "own"
    produces: ClassVar[Columns] = {"ops": {"x": "u4"}, "whole": {"y": "f8"}}


def made(**columns):
    return Partition(0, {"ops": pa.table({"op": np.zeros(2, np.uint8), **columns})})


def test_what_is_declared_passes():
    check_made(Own(), made(), made(x=np.zeros(2, np.uint32)))
    check_made(Own(), replace(made(), unread={("ops", "x")}), made())


@pytest.mark.parametrize(
    ("part", "text"),
    [
        (None, "stage own: apply returned NoneType"),
        (made(), "stage own declares ops.x as u4, but it is missing"),
        (made(x=np.zeros(2)), "stage own declares ops.x as u4, but it is double"),
        (made(x=["a", "b"]), "stage own declares ops.x as u4, but it is string"),
    ],
)
def test_what_is_not_is_refused(part, text):
    with pytest.raises(PipelineError, match=text):
        check_made(Own(), made(), part)


def test_a_table_that_is_declared_and_not_added_is_refused():
    class Adds(Stage):
        name: ClassVar[str] = "own"
        adds: ClassVar[Columns] = {"extra": {"x": "u4"}}

    empty = pa.table({"x": np.zeros(0, np.uint32)})
    before = made().with_table("extra", empty)
    with pytest.raises(PipelineError, match="stage own declares the table extra, and did not"):
        check_made(Adds(), before, before)
    check_made(Adds(), before, before.with_table("extra", empty.slice(0)))
