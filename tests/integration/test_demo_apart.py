"""The demo and an installation of the same user do not affect each other."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import httpx
import pytest

from tests.support import plain_user
from tests.support.demo import Command
from tests.support.nightly import by_night
from tests.support.waiting import wait_for

# Settings of servers that do not exist: a command that uses them fails.
ELSEWHERE = {
    "PACELINE_DATABASE_URL": "postgresql+psycopg://real@127.0.0.1:9/real",
    "PACELINE_BROKER_URL": "redis://127.0.0.1:9/0",
    "PACELINE_BLOB_URL": "s3://real",
}


@pytest.fixture
def person(open_dir: Path, request: pytest.FixtureRequest) -> plain_user.User:
    """Return a user with a home directory, because root's data directory is the machine's."""
    if os.geteuid() != 0:
        return plain_user.User(Path(sys.executable), open_dir, None)
    account = plain_user.account()
    os.chown(open_dir, account.pw_uid, account.pw_gid)
    return plain_user.User(request.getfixturevalue("plain_python"), open_dir, account)


def jobs(url: str) -> set[str]:
    sessions = httpx.get(f"{url}/api/v1/sessions", params={"limit": 200}).json()["sessions"]
    return {session["job"] for session in sessions}


@by_night
def test_the_demo_and_an_installation_of_one_user_share_nothing(person: plain_user.User) -> None:
    with Command(person, "demo", environment=ELSEWHERE) as demo:
        url = demo.url()
        wait_for(lambda: jobs(url), "first session")
        assert "does not use what PACELINE_DATABASE_URL, PACELINE_BROKER_URL" in demo.words()
        demo.stop()
    with Command(person, "serve") as installation:
        assert jobs(installation.url()) == set()
        installation.stop()
    share = person.home / ".local" / "share"
    assert (share / "paceline" / "postgresql").is_dir()
    assert (share / "paceline-demo" / "postgresql").is_dir()
    with Command(person, "serve", "--data-dir", str(share / "paceline-demo")) as refused:
        assert refused.process.wait(60) != 0
        assert "holds the data of the demo" in refused.words()
