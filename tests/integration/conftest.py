"""Fixtures for tests of servers and processes: a client, directories, and users."""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.support import plain_user
from tests.support.served import client_of_served

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from app.platform.container import Container


@pytest.fixture
def client(container: Container) -> Iterator[httpx.Client]:
    """Yield a client of a server without workers."""
    with client_of_served(container) as client:
        yield client


@pytest.fixture
def open_dir() -> Iterator[Path]:
    """Yield a directory that every account may enter, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        Path(path).chmod(0o755)
        yield Path(path)


@pytest.fixture(scope="session")
def plain_python() -> Iterator[Path]:
    """Yield an interpreter that the plain user can run, with the project on its path."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        yield plain_user.install(Path(path))


@pytest.fixture(params=["present user", "plain user"])
def user(request: pytest.FixtureRequest, open_dir: Path) -> plain_user.User:
    """Return the user of the program: the present user, and for root also a plain one."""
    if request.param == "present user":
        return plain_user.User(Path(sys.executable), open_dir, None)
    if os.geteuid() != 0:
        pytest.skip("the present user is a plain one")
    account = plain_user.account()
    os.chown(open_dir, account.pw_uid, account.pw_gid)
    return plain_user.User(request.getfixturevalue("plain_python"), open_dir, account)
