"""Blobs are read byte for byte, in parts of at most 4 MiB, and belong to a transaction."""

from __future__ import annotations

import contextlib
import random
import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import text

from app.errors import NotFoundError
from app.platform.blobs import PART_BYTES, delete_blob, read_blob, write_blob

if TYPE_CHECKING:
    from app.platform.container import Container

_RANDOM = random.Random(7)  # noqa: S311 - data, no secret


@pytest.mark.parametrize(
    ("lengths", "parts"),
    [
        ([], [0]),
        ([0, 0], [0]),
        ([1], [1]),
        ([PART_BYTES], [PART_BYTES]),
        ([PART_BYTES + 1], [PART_BYTES, 1]),
        ([3, PART_BYTES, 5], [PART_BYTES, 8]),
        ([PART_BYTES // 2] * 5, [PART_BYTES, PART_BYTES, PART_BYTES // 2]),
        ([2 * PART_BYTES], [PART_BYTES, PART_BYTES]),
    ],
)
def test_bytes_come_back_in_parts_of_bounded_size(
    container: Container, lengths: list[int], parts: list[int]
) -> None:
    pieces = [_RANDOM.randbytes(length) for length in lengths]
    with container.uow() as tx:
        blob_id = write_blob(tx, iter(pieces))
    with container.uow() as tx:
        read = list(read_blob(tx, blob_id))
    assert [len(part) for part in read] == parts
    assert b"".join(read) == b"".join(pieces)


def test_a_blob_is_gone_with_its_transaction(container: Container) -> None:
    tx = container.uow()
    with contextlib.suppress(InterruptedError), tx:
        blob_id = write_blob(tx, [b"x" * 100])
        raise InterruptedError
    with container.uow() as tx, pytest.raises(NotFoundError):
        list(read_blob(tx, blob_id))


def test_a_deleted_blob_is_not_found_and_others_stay(container: Container) -> None:
    with container.uow() as tx:
        first = write_blob(tx, [b"1" * (PART_BYTES + 1)])
        second = write_blob(tx, [b"2"])
    with container.uow() as tx:
        assert delete_blob(tx, first) == 2
        assert delete_blob(tx, uuid.uuid4()) == 0
    with container.uow() as tx:
        with pytest.raises(NotFoundError):
            next(read_blob(tx, first))
        assert b"".join(read_blob(tx, second)) == b"2"


def test_parts_are_stored_without_compression(container: Container) -> None:
    with container.uow() as tx:
        blob_id = write_blob(tx, [b"\0" * PART_BYTES])
    with container.uow() as tx:
        stored = (
            tx.session.connection()
            .execute(
                text("SELECT pg_column_size(data) FROM blob_part WHERE blob_id = :id"),
                {"id": blob_id},
            )
            .scalar_one()
        )
    assert stored >= PART_BYTES
