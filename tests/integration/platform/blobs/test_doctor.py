"""`paceline doctor` tests the object store, and counts the blobs in store and database."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from app.platform.blobs import write_blob
from app.retention.objects import move_to_store
from tests.support.command import paceline

if TYPE_CHECKING:
    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.support.s3 import Proxy, S3Server


@pytest.fixture
def environment(stored_settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in stored_settings.environment().items():
        if "_BLOB_" in name or name in {"PACELINE_DATABASE_URL", "PACELINE_DATA_DIR"}:
            monkeypatch.setenv(name, value)
    # A wide terminal, in which no cell is wrapped.
    monkeypatch.setenv("COLUMNS", "900")


def _said() -> tuple[str, str]:
    """Return the state and the text of the object store's row."""
    done = paceline("doctor")
    # The exit status is 1 because no worker runs.
    assert done.returncode == 1
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("object store")]
    state, _, detail = line.removeprefix("object store").strip().partition(" ")
    return state, detail.strip()


@pytest.mark.usefixtures("environment")
def test_a_store_that_works_is_tried_and_left_as_it_was(
    installation: Container, container: Container, s3: S3Server
) -> None:
    for _ in range(2):
        with container.uow() as tx:
            write_blob(tx, [b"data"])
    move_to_store(installation, lambda _: None)
    with container.uow() as tx:
        write_blob(tx, [b"small"])
    before = s3.objects()
    assert _said() == (
        "ok",
        "writes, reads, lists and deletes; blobs: 2 there, 1 in the database",
    )
    assert s3.objects() == before


@pytest.mark.usefixtures("environment")
def test_a_faulty_store_is_listed_with_the_other_parts(
    container: Container, proxy: Proxy, s3: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    with container.uow() as tx:
        write_blob(tx, [b"data"])
    proxy.refuse = True
    state, detail = _said()
    assert (state, detail.startswith("cannot write: The object store does not answer")) == (
        "wrong",
        True,
    ), detail
    assert detail.endswith("; blobs: 0 there, 1 in the database")
    proxy.refuse = False
    assert s3.objects() == {}
    monkeypatch.setenv("PACELINE_BLOB_URL", "https://bucket")
    assert _said() == ("wrong", "PACELINE_BLOB_URL is not of the form s3://bucket/prefix")


@pytest.mark.usefixtures("environment")
def test_without_a_store_one_line_says_so(
    installation: Container, container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_BLOB_URL", "")
    assert _said() == ("ok", "not configured; blobs: 0 there, 0 in the database")
    with container.uow() as tx:
        write_blob(tx, [b"data"])
    move_to_store(installation, lambda _: None)
    assert _said() == ("wrong", "set PACELINE_BLOB_URL; blobs: 1 there, 0 in the database")
