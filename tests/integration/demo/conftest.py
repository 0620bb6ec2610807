"""A demo that ran until its history was whole."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from tests.support.demo import Command
from tests.support.plain_user import User


@pytest.fixture(scope="session")
def told() -> Iterator[httpx.Client]:
    """Yield a client of a demo that continues a history that is there whole."""
    with tempfile.TemporaryDirectory(prefix="paceline-test-") as path:
        # The account of the server goes through it.
        Path(path).chmod(0o755)
        user = User(Path(sys.executable), Path(path), None)
        arguments = ("demo", "--data-dir", f"{path}/demo")
        with Command(user, *arguments) as first:
            first.url()
            first.whole()
            first.stop()
        with Command(user, *arguments) as demo:
            url = demo.url()
            assert "paceline demo --fresh" in demo.words()
            with httpx.Client(base_url=url, trust_env=False, timeout=60) as client:
                yield client
            demo.stop()
