"""Processes that run the embedded database, and end with the test."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import skip_or_fail
from tests.support.embedded import Runner

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.plain_user import User

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")


@pytest.fixture
def user_runner(user: User) -> Iterator[Runner]:
    runner = Runner(user)
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture
def postgres_15() -> Path:
    """Return where the programs of the oldest supported PostgreSQL are."""
    if not (POSTGRES_15 / "postgres").exists():
        skip_or_fail(f"PostgreSQL 15 is not in {POSTGRES_15}")
    return POSTGRES_15


@pytest.fixture(params=["PostgreSQL of the wheel", "PostgreSQL 15"])
def runner(request: pytest.FixtureRequest, user_runner: Runner) -> Runner:
    if request.param == "PostgreSQL 15":
        user_runner.bin_dir = request.getfixturevalue("postgres_15")
    return user_runner
