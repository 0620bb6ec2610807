"""Stored formats change in two versions: the first one reads the new format, the next writes it."""

from __future__ import annotations

from app.analysis.generation import READS, WRITES

# The newest generation that each released version reads; a release adds its line.
READ_BY = {"0.2.0": 1}


def test_the_previous_version_reads_what_this_version_writes() -> None:
    previous = list(READ_BY.values())[-1]
    assert WRITES <= previous <= READS
