"""Bytes in a bucket: stored completely or not at all, also if the connection breaks."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from app.errors import LostBytesError, NotFoundError, ObjectStoreError, StartupError
from app.platform import s3 as s3_objects
from app.platform.blobs import delete_blob, open_blob, read_blob, write_blob
from tests.support.project import build
from tests.support.s3 import with_store

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.support.s3 import Proxy, S3Server

MIB = 1024 * 1024


def _store(container: Container) -> s3_objects.S3Objects:
    assert container.objects is not None
    store = container.objects.store
    assert isinstance(store, s3_objects.S3Objects)
    return store


def test_a_blob_is_one_object_below_its_project(installation: Container, s3: S3Server) -> None:
    pieces = [os.urandom(3 * MIB) for _ in range(7)]
    staged = installation.stage(iter(pieces))
    with installation.uow() as tx:
        blob = write_blob(tx, staged)
    (key,) = s3.objects()
    assert key.startswith(f"project-{installation.project_id}/")
    with installation.reading() as tx:
        read = list(read_blob(tx, blob))
        later = open_blob(tx, blob)
    assert b"".join(read) == b"".join(pieces)
    assert max(map(len, read)) <= s3_objects.PART_BYTES
    # A blob can be read after the transaction, and repeatedly.
    assert b"".join(later) == b"".join(later) == b"".join(pieces)
    # Deleting a blob only deletes its row.
    with installation.uow() as tx:
        assert delete_blob(tx, blob) == 1
    with installation.reading() as tx, pytest.raises(NotFoundError):
        list(read_blob(tx, blob))
    assert set(s3.objects()) == {key}


def test_small_bytes_stay_in_the_database(settings: Settings, proxy: Proxy, s3: S3Server) -> None:
    container = build(with_store(settings, proxy.url, blob_min_bytes=1000))
    for sizes, objects in (([999], 0), ([], 0), ([500, 499], 0), ([500, 500], 1), ([5000], 2)):
        staged = container.stage(b"x" * size for size in sizes)
        with container.uow() as tx:
            blob = write_blob(tx, staged)
        with container.reading() as tx:
            assert b"".join(read_blob(tx, blob)) == b"x" * sum(sizes)
        assert len(s3.objects()) == objects
    container.close()


def test_another_project_reads_nothing(installation: Container) -> None:
    staged = installation.stage([b"secret"])
    with installation.uow() as tx:
        blob = write_blob(tx, staged)
    other = installation.within(installation.project_id + 1)
    with other.uow() as tx:
        with pytest.raises(NotFoundError):
            list(read_blob(tx, blob))
        assert delete_blob(tx, blob) == 0


def test_without_the_store_it_says_what_is_missing(
    installation: Container, container: Container
) -> None:
    staged = installation.stage([b"x"])
    with installation.uow() as tx:
        blob = write_blob(tx, staged)
    with container.reading() as tx, pytest.raises(StartupError, match="PACELINE_BLOB_URL"):
        list(read_blob(tx, blob))


def test_bytes_from_before_in_the_database_are_still_read(
    installation: Container, container: Container
) -> None:
    with container.uow() as tx:
        blob = write_blob(tx, [b"old"])
    with installation.reading() as tx:
        assert list(read_blob(tx, blob)) == [b"old"]


def test_a_connection_that_breaks_in_the_middle_costs_nothing(
    installation: Container, s3: S3Server, proxy: Proxy
) -> None:
    pieces = [os.urandom(3 * MIB) for _ in range(9)]
    proxy.break_after = 12 * MIB
    size = _store(installation).write("key", iter(pieces))
    assert (proxy.broken, size) == (1, 27 * MIB)
    assert s3.objects() == {"key": size}
    assert b"".join(_store(installation).read("key", size)) == b"".join(pieces)


def test_a_half_sent_object_does_not_exist(
    installation: Container, s3: S3Server, proxy: Proxy
) -> None:
    def pieces() -> Iterator[bytes]:
        for number in range(9):
            if number == 6:
                # From here on, the store does not answer.
                proxy.refuse = True
                proxy.break_all()
            yield os.urandom(3 * MIB)

    with pytest.raises(ObjectStoreError):
        installation.stage(pieces())
    assert s3.objects() == {}


def test_an_object_that_fails_to_be_made_does_not_exist(
    installation: Container, s3: S3Server
) -> None:
    def pieces() -> Iterator[bytes]:
        yield os.urandom(20 * MIB)
        raise ValueError("no more")

    with pytest.raises(ValueError, match="no more"):
        installation.stage(pieces())
    assert s3.objects() == {}


def test_lost_bytes_differ_from_an_unreachable_store(installation: Container, proxy: Proxy) -> None:
    store = _store(installation)
    with pytest.raises(LostBytesError):
        list(store.read("none", 5))
    store.write("short", [b"123"])
    with pytest.raises((LostBytesError, ObjectStoreError)):
        list(store.read("short", 5))
    proxy.refuse = True
    with pytest.raises(ObjectStoreError):
        list(store.read("short", 3))


# The test's server keeps all objects in its memory, so a separate process sends.
SENDING = """
import os, resource
from app.platform.s3 import S3Objects
from app.platform.settings import Settings
store = S3Objects(Settings())
piece = os.urandom(4 << 20)
store.write("small", [piece, piece, piece])
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
size = store.write("large", (bytes(piece) for _ in range(24)))
assert sum(map(len, store.read("large", size))) == size == 96 << 20
print((resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_memory_is_bounded(settings: Settings, s3: S3Server) -> None:
    sent = subprocess.run(  # noqa: S603 - the test's own
        [sys.executable, "-c", SENDING],
        env=os.environ | with_store(settings, s3.url).environment(),
        stdout=subprocess.PIPE,
        check=True,
    )
    # MiB that 96 MiB take in addition to 12 MiB: a few parts, and the allocator's overhead.
    assert int(sent.stdout) < 64


@pytest.mark.parametrize("url", ["https://bucket/x", "s3://", "s3://bucket/x?versions", "bucket"])
def test_an_address_of_another_kind_is_refused_at_the_start(settings: Settings, url: str) -> None:
    with pytest.raises(StartupError, match="s3://bucket/prefix"):
        build(with_store(settings, "http://127.0.0.1:1", blob_url=url))
