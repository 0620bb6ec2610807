"""Objects without a row are deleted after some time; young and referenced objects stay."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import dataclass, replace
from datetime import timedelta
from typing import TYPE_CHECKING, cast

from sqlalchemy import func, select, update

from app.access.moves import move_job, prune_projects
from app.access.projects import create_project
from app.platform.blobs import (
    BlobObject,
    BlobPart,
    ObjectLook,
    UnreferencedObject,
    read_blob,
    write_blob,
)
from app.platform.object_store import Objects
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.retention.delete import delete_job
from app.retention.objects import (
    Moved,
    collect_objects,
    move_to_database,
    move_to_store,
    references,
)
from app.sessions.read import report_json
from tests.support.reads import read
from tests.support.sessions import small_trace, store
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterable, Iterator, Sequence

    from app.platform.container import Container
    from app.platform.object_store import ListedObject, ObjectStore
    from app.platform.settings import Settings
    from tests.support.s3 import Proxy, S3Server

DAY = timedelta(days=1)


@dataclass
class Aged:
    """The object store as it appears some time later."""

    store: ObjectStore
    by: timedelta

    def write(self, key: str, pieces: Iterable[bytes]) -> int:
        return self.store.write(key, pieces)

    def read(self, key: str, size: int) -> Iterator[bytes]:
        return self.store.read(key, size)

    def pages(self, after: str | None = None) -> Iterator[Sequence[ListedObject]]:
        for page in self.store.pages(after):
            yield [replace(one, written_at=one.written_at - self.by) for one in page]

    def delete(self, keys: Sequence[str]) -> None:
        self.store.delete(keys)


def later(container: Container, by: timedelta) -> Container:
    """Return a container that sees the objects' ages of a later time."""
    objects = cast("Objects", container.objects)
    return replace(container, objects=Objects(Aged(objects.store, by), objects.min_bytes))


def look(container: Container, *, noted_ago: timedelta = timedelta()) -> int:
    """Run a due scan of the store; objects of the previous scan were noted some time ago."""
    with container.everywhere().uow() as tx:
        tx.session.execute(update(ObjectLook).values(due_at=tx.now))
        tx.session.execute(
            update(UnreferencedObject).values(seen_at=UnreferencedObject.seen_at - noted_ago)
        )
    return collect_objects(container)


def written(container: Container, data: bytes = b"data") -> uuid.UUID:
    staged = container.stage([data])
    with container.uow() as tx:
        return write_blob(tx, staged)


def test_only_old_unreferenced_objects_go(installation: Container, s3: S3Server) -> None:
    kept = written(installation)
    # The state after a kill between writing the object and its row.
    installation.stage([b"unknown"])
    assert len(s3.objects()) == 2
    # Young objects are not noted.
    assert look(installation) == 0
    assert look(later(installation, 0.9 * DAY), noted_ago=2 * DAY) == 0
    old = later(installation, 1.1 * DAY)
    # Old objects stay until they had no row in two scans a day apart.
    assert look(old) == look(old, noted_ago=0.9 * DAY) == 0
    assert len(s3.objects()) == 2
    assert look(old, noted_ago=0.2 * DAY) == 1
    assert len(s3.objects()) == 1
    with installation.reading() as tx:
        assert b"".join(read_blob(tx, kept)) == b"data"
        assert tx.session.execute(select(UnreferencedObject)).all() == []
    assert look(old, noted_ago=9 * DAY) == 0


def test_it_looks_once_an_hour(installation: Container) -> None:
    installation.stage([b"x"])
    old = later(installation, 2 * DAY)
    assert look(old) == 0
    with installation.everywhere().reading() as tx:
        due = tx.session.execute(select(ObjectLook.due_at)).scalar_one() - tx.now
    assert timedelta(minutes=50) < due <= timedelta(hours=1)
    assert collect_objects(old) == 0


def test_a_store_that_is_away_does_not_hold_the_sweeper_up(
    installation: Container, proxy: Proxy
) -> None:
    proxy.refuse = True
    assert look(installation) == 0
    with installation.everywhere().reading() as tx:
        due = tx.session.execute(select(ObjectLook.due_at)).scalar_one() - tx.now
    assert timedelta(0) < due <= timedelta(minutes=5)


def test_bytes_that_a_restored_backup_needs_are_kept(installation: Container, s3: S3Server) -> None:
    blob = written(installation)
    old = later(installation, 2 * DAY)
    with installation.everywhere().uow() as tx:
        row = tx.session.get_one(BlobObject, blob)
        key, size = row.key, row.bytes
        tx.session.delete(row)
    look(old)
    with installation.uow() as tx:
        tx.session.add(BlobObject(blob_id=blob, key=key, bytes=size))
    assert look(old, noted_ago=2 * DAY) == 0
    assert set(s3.objects()) == {key}
    assert references(installation).lost == 0
    installation_store = cast("Objects", installation.objects).store
    installation_store.delete([key])
    assert references(installation).lost == 1


def _analyzed(container: Container) -> tuple[uuid.UUID, bytes]:
    stored = store(container, small_trace())
    assert execute(container, LeaseKeeper(container), stored.run)
    return stored.session, read(container, report_json, stored.session)


def test_a_deleted_job_leaves_no_object(installation: Container, s3: S3Server) -> None:
    _analyzed(installation)
    # Only report and heatmaps are objects: `store` keeps the trace in the database.
    assert len(s3.objects()) == 2
    delete_job(installation, "llm")
    prune_projects(installation)
    with installation.everywhere().reading() as tx:
        assert tx.session.execute(select(BlobObject)).all() == []
    old = later(installation, 2 * DAY)
    look(old)
    assert look(old, noted_ago=2 * DAY) == 2
    assert s3.objects() == {}


def test_a_job_takes_its_objects_to_another_project(installation: Container) -> None:
    session, report = _analyzed(installation)
    other = create_project(installation.everywhere(), "other").id
    move_job(installation, "llm", "other")
    assert read(installation.within(other), report_json, session) == report


def _nothing(_moved: Moved) -> None:
    pass


def test_blobs_move_there_and_back(
    installation: Container, container: Container, s3: S3Server
) -> None:
    session, report = _analyzed(container)
    with container.uow() as tx:
        large = write_blob(tx, [os.urandom(9 << 20)])
    with container.reading() as tx:
        before = b"".join(read_blob(tx, large))
    there = move_to_store(installation, _nothing)
    # Trace, report, heatmaps and the large blob.
    assert (there.blobs, len(s3.objects())) == (4, 4)
    with installation.everywhere().reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(BlobPart)).scalar() == 0
    with installation.reading() as tx:
        assert b"".join(read_blob(tx, large)) == before
    assert read(installation, report_json, session) == report
    assert move_to_store(installation, _nothing).blobs == 0
    assert move_to_database(installation, _nothing) == there
    # Without an object store, the blob is unchanged.
    with container.reading() as tx:
        assert b"".join(read_blob(tx, large)) == before
    assert read(container, report_json, session) == report


MOVING = """
from app.bootstrap import build
from app.retention.objects import move_to_store
from app.platform.settings import Settings
move_to_store(build(Settings()), lambda moved: None)
"""


def test_a_move_that_is_killed_is_gone_on_with(
    installation: Container,
    container: Container,
    stored_settings: Settings,
    s3: S3Server,
    proxy: Proxy,
) -> None:
    contents = {written(container, os.urandom(1 << 20)): None for _ in range(8)}
    with container.reading() as tx:
        before = {blob: b"".join(read_blob(tx, blob)) for blob in contents}
    process = subprocess.Popen(  # noqa: S603 - the test's own
        [sys.executable, "-c", MOVING], env=os.environ | stored_settings.environment()
    )
    wait_for(lambda: len(s3.objects()) >= 3, "three objects")
    proxy.hold.clear()
    process.kill()
    process.wait()
    proxy.break_all()
    proxy.hold.set()
    with installation.reading() as tx:
        assert {blob: b"".join(read_blob(tx, blob)) for blob in contents} == before
    move_to_store(installation, _nothing)
    with installation.everywhere().reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(BlobPart)).scalar() == 0
        assert tx.session.execute(select(func.count()).select_from(BlobObject)).scalar() == 8
    with installation.reading() as tx:
        assert {blob: b"".join(read_blob(tx, blob)) for blob in contents} == before
    # Objects that the killed process had written, without a row.
    old = later(installation, 2 * DAY)
    look(old)
    look(old, noted_ago=2 * DAY)
    assert len(s3.objects()) == 8
