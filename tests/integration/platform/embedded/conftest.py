"""Processes that run the embedded database, and end with the test."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.conftest import skip_or_fail
from tests.support.embedded import Runner
from tests.support.nightly import BY_NIGHT

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.support.plain_user import User

POSTGRES_15 = Path("/usr/lib/postgresql/15/bin")

# By day, each release and each account are tested once; every night, each release with each
# account.
BY_NIGHT_ALONE = ("[PostgreSQL of the wheel-plain user]", "[PostgreSQL 15-present user]")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Skip by day the combinations that run every night."""
    # A user other than root has only one account to test with.
    if BY_NIGHT or os.geteuid() != 0:
        return
    left_out = [item for item in items if item.name.endswith(BY_NIGHT_ALONE)]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]


@pytest.fixture
def user_runner(user: User) -> Iterator[Runner]:
    runner = Runner(user)
    try:
        yield runner
    finally:
        runner.close()


@pytest.fixture
def postgres_15() -> Path:
    """Return the directory of the oldest supported PostgreSQL's programs."""
    if not (POSTGRES_15 / "postgres").exists():
        skip_or_fail(f"PostgreSQL 15 is not in {POSTGRES_15}")
    return POSTGRES_15


@pytest.fixture(params=["PostgreSQL of the wheel", "PostgreSQL 15"])
def runner(request: pytest.FixtureRequest, user_runner: Runner) -> Runner:
    if request.param == "PostgreSQL 15":
        user_runner.bin_dir = request.getfixturevalue("postgres_15")
    return user_runner
