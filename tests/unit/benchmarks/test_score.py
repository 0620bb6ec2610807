"""Scores state whether their jobs' seeds were used while the rules were developed."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path
from typing import Final

import pytest

from benchmarks.score import HELD_OUT, lines, run

ROOT: Final = Path(__file__).parents[3]


def recipe(*arguments: str) -> str:
    done = subprocess.run(  # noqa: S603 - our own Makefile, nothing is run
        ["make", "--dry-run", *arguments],  # noqa: S607 - the caller's make
        cwd=ROOT,
        # Without the environment of a `make` that runs this test.
        env={"PATH": os.environ["PATH"]},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.splitlines()[-1]


def test_the_default_seeds_are_unseen_and_soak_keeps_its_own() -> None:
    assert recipe("score").endswith("benchmarks.score  --jobs 1000")
    assert recipe("score", "SEED=7", "JOBS=2").endswith("benchmarks.score --seed 7 --jobs 2")
    assert recipe("soak", "INCIDENTS=9").rstrip().endswith("benchmarks.soak --incidents 9")
    assert recipe("soak", "SEED=7").endswith("--incidents 10000 --seed 7")


@pytest.mark.slow
def test_jobs_of_seeds_that_the_rules_were_made_on_are_named() -> None:
    told = "1 of them are of seeds below 1,000,000, on which the rules were made"
    assert list(lines(run(1, 1, processes=1)))[1] == told
    assert list(lines(run(HELD_OUT, 1, processes=1)))[1] == ""
