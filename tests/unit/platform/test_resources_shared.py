"""Counters that the processes of one server share."""

from __future__ import annotations

import multiprocessing
from typing import TYPE_CHECKING

from app.platform.resources import Place, Sum

if TYPE_CHECKING:
    from pathlib import Path


def test_each_sees_the_sum_of_the_others(tmp_path: Path) -> None:
    sums = [Sum(Place(tmp_path, number, 3), "spooled") for number in range(3)]
    for number, one in enumerate(sums):
        one.set(10**number)
    assert [one.of_others() for one in sums] == [110, 101, 11]


def _set(directory: Path) -> None:
    Sum(Place(directory, 1, 2), "spooled").set(7)


def test_what_a_process_that_is_gone_said_ends_with_the_one_in_its_place(tmp_path: Path) -> None:
    first = Sum(Place(tmp_path, 0, 2), "spooled")
    process = multiprocessing.get_context("spawn").Process(target=_set, args=(tmp_path,))
    process.start()
    process.join()
    assert first.of_others() == 7
    Sum(Place(tmp_path, 1, 2), "spooled")
    assert first.of_others() == 0
