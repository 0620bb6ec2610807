"""Small jobs of PyTorch in separate processes, and a server for them."""

from __future__ import annotations

import gzip
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from sqlalchemy import update

from app.installation.sweep import sweep
from app.sessions.models.tables import Intake
from paceline_client.spool import Address, Spool
from tests.conftest import skip_or_fail
from tests.integration.api.conftest import Installation, install, installation
from tests.real_jobs.jobs import Framework
from tests.real_jobs.launching import missing, torch_python

__all__ = ["install", "installation"]

# An address without a server.
NOWHERE: Final = "http://127.0.0.1:9"
_ROOT: Final = Path(__file__).parents[3]
_TRAINING: Final = Path(__file__).with_name("training.py")


@dataclass(frozen=True, slots=True)
class Trained:
    """The results of a job."""

    directory: Path
    code: int
    said: str

    @property
    def spool(self) -> Spool:
        return Spool(self.directory / "spool")

    def told(self, name: str = "rank-0") -> dict[str, Any]:
        """Return the document that a rank wrote at its end."""
        document: dict[str, Any] = json.loads((self.directory / f"{name}.json").read_text())
        return document

    def shares(self) -> dict[str, tuple[Address, list[dict[str, Any]]]]:
        """Return the lines of the spooled chunks, by producer."""
        found = {}
        for path in self.spool.waiting():
            with self.spool.claimed(path) as claimed:
                assert claimed is not None
                address, body = claimed
                lines = [json.loads(line) for line in gzip.decompress(body).splitlines()]
                assert address.producer not in found, "a share twice"
                found[address.producer] = (address, lines)
        return found


Train = Callable[..., Trained]


def environment() -> dict[str, str]:
    """Return the environment of a job's processes."""
    return os.environ | {
        "PYTHONPATH": os.pathsep.join((str(_ROOT), str(_ROOT / "client" / "src"))),
        "OMP_NUM_THREADS": "1",
        "GLOO_SOCKET_IFNAME": "lo",
        "no_proxy": "127.0.0.1",
    }


class Jobs:
    """A process that has imported PyTorch, and forks each requested job."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def start(self, directory: Path, *words: str) -> None:
        """Start a job; `words` are options of `training.py`."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps([str(directory), *words]) + "\n")
        self._process.stdin.flush()

    def wait(self, directory: Path) -> Trained:
        """Return the results of the job, whose processes have a time limit of their own."""
        assert self._process.stdout is not None
        code = int(self._process.stdout.readline())
        return Trained(directory, code, (directory / "log").read_text())


@pytest.fixture(scope="session")
def jobs() -> Iterator[Jobs]:
    """Yield a process that runs jobs, one at a time."""
    reason = missing(Framework.TORCH)
    if reason is not None:
        skip_or_fail(reason)
    with (
        TemporaryDirectory(prefix="paceline-test-") as cache,
        subprocess.Popen(  # noqa: S603 - our own script
            [torch_python(), str(_TRAINING)],
            env=environment() | {"TORCHINDUCTOR_CACHE_DIR": cache},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        yield Jobs(process)
        assert process.stdin is not None
        process.stdin.close()
        process.wait()


@pytest.fixture
def train(jobs: Jobs, tmp_path: Path) -> Train:
    """Return a function that runs a job to its end."""

    def train(*words: str) -> Trained:
        jobs.start(tmp_path / "job", *words)
        return jobs.wait(tmp_path / "job")

    return train


def fall_silent(installation: Installation, seconds: float = 121.0) -> int:
    """Move the time of the last chunk back, and return the number of sessions that are sealed."""
    installation.absorb_all()
    with installation.container.uow() as tx:
        tx.session.execute(update(Intake).values(last_chunk_at=tx.now - timedelta(seconds=seconds)))
    return sweep(installation.container).sealed
