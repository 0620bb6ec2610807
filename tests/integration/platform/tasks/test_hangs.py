"""A large archive of a hang is read once, in spite of killed workers."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, text

from app.hangs.models import HangUpload, HangUploadPart, StoredHang
from app.hangs.uploads import Upload, receive_any
from app.installation.sweep import sweep
from app.platform.settings import Settings
from app.sessions.body import Body
from tests.support.hanging import large_archive
from tests.support.project import build
from tests.support.waiting import wait_for
from tests.support.worker import WorkerProcess

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container


@pytest.fixture
def container(database_url: str, tmp_path: Path) -> Iterator[Container]:
    built = build(
        Settings(
            database_url=database_url,
            data_dir=tmp_path / "data",
            lease_s=4.0,
            alert_attempt_limit_s=3.0,
            lease_renew_s=0.5,
            republish_after_s=1.0,
            heartbeat_interval_s=0.2,
        )
    )
    yield built
    built.close()


def keep(container: Container, path: Path) -> Upload:
    """Store an archive for a worker to read."""
    content = large_archive()
    path.write_bytes(content)
    kept = receive_any(
        container, "moe", Body(path, len(content), hashlib.sha256(content).digest(), None, None)
    )
    assert isinstance(kept, Upload)
    return kept


def state(container: Container) -> str:
    sweep(container)
    with container.reading() as tx:
        found: str = tx.session.execute(select(HangUpload.state)).scalar_one()
    return found


def test_a_worker_that_is_killed_in_the_middle_leaves_no_hang_and_the_next_one_makes_it(
    container: Container, tmp_path: Path
) -> None:
    keep(container, tmp_path / "archive")
    with container.engine.begin() as held:
        # The lock prevents the result from being stored.
        held.execute(text("SET LOCAL idle_in_transaction_session_timeout = 0"))
        held.execute(text("LOCK TABLE hang_file IN ACCESS EXCLUSIVE MODE"))
        with WorkerProcess(container, tmp_path / "log") as worker:
            wait_for(lambda: state(container) == "reading", "it is read")
            worker.kill()
    with container.reading() as tx:
        assert tx.session.execute(select(StoredHang.id)).all() == []
        parts = tx.session.execute(select(func.count()).select_from(HangUploadPart)).scalar_one()
        assert parts > 0

    with WorkerProcess(container, tmp_path / "log"):
        wait_for(lambda: state(container) == "read", "another one has read it")
    with container.reading() as tx:
        (hang,) = tx.session.execute(select(StoredHang.id)).scalars()
        assert tx.session.execute(select(HangUpload.hang_id)).scalar_one() == hang
        assert tx.session.execute(select(HangUploadPart.part)).all() == []
