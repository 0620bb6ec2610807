"""Received bodies: in memory while they are small and few, else in a file."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import anyio
import pytest
from anyio import CapacityLimiter

from app.errors import BusyError
from app.platform.settings import MIB
from app.sessions.api.spool import HELD_BYTES, HELD_TOGETHER_BYTES, ByteBudget, Spool

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable
    from pathlib import Path

    Spooling = Callable[[Callable[[Spool], Awaitable[None]]], None]

PIECE = bytes(range(256)) * 256


@pytest.fixture
def budget() -> ByteBudget:
    return ByteBudget(1024 * MIB)


@pytest.fixture
def spooling(budget: ByteBudget, tmp_path: Path) -> Spooling:
    def spooling(work: Callable[[Spool], Awaitable[None]]) -> None:
        async def run() -> None:
            async with Spool(tmp_path, budget, CapacityLimiter(1)) as spool:
                await work(spool)

        anyio.run(run)
        assert budget.used == 0
        # The whole memory is free again.
        assert budget.hold(HELD_TOGETHER_BYTES)
        budget.let_go(HELD_TOGETHER_BYTES)

    return spooling


async def fill(spool: Spool, size: int) -> None:
    for _ in range(size // len(PIECE)):
        await spool.write(PIECE)


def test_a_small_body_stays_in_memory(spooling: Spooling) -> None:
    async def work(spool: Spool) -> None:
        await fill(spool, HELD_BYTES)
        assert spool.held(HELD_BYTES) == PIECE * (HELD_BYTES // len(PIECE))
        assert spool.held(HELD_BYTES - 1) is None

    spooling(work)


def test_a_body_whose_taker_wants_a_file_is_in_one(spooling: Spooling) -> None:
    async def work(spool: Spool) -> None:
        await fill(spool, 3 * MIB)
        whole = await spool.finish()
        content = PIECE * (3 * MIB // len(PIECE))
        assert whole.path.read_bytes() == content
        assert whole.sha256 == hashlib.sha256(content).digest()
        assert whole.head == content[:16]

    spooling(work)


def test_a_large_body_is_in_a_file(spooling: Spooling, budget: ByteBudget) -> None:
    async def work(spool: Spool) -> None:
        await fill(spool, HELD_BYTES + MIB)
        assert spool.held(2 * HELD_BYTES) is None
        # A body in a file holds no memory, except for a piece before it is written.
        assert budget.hold(HELD_TOGETHER_BYTES)
        budget.let_go(HELD_TOGETHER_BYTES)
        whole = await spool.finish()
        assert whole.path.stat().st_size == HELD_BYTES + MIB

    spooling(work)


def test_bodies_go_to_files_where_others_have_the_memory(
    spooling: Spooling, budget: ByteBudget
) -> None:
    async def work(spool: Spool) -> None:
        assert budget.hold(HELD_TOGETHER_BYTES - MIB // 2)
        await fill(spool, 4 * MIB)
        assert spool.held(HELD_BYTES) is None
        budget.let_go(HELD_TOGETHER_BYTES - MIB // 2)
        assert (await spool.finish()).path.stat().st_size == 4 * MIB

    spooling(work)


def test_a_body_that_is_refused_midway_gives_all_back(tmp_path: Path) -> None:
    budget = ByteBudget(MIB)

    async def run() -> None:
        with pytest.raises(BusyError):
            async with Spool(tmp_path, budget, CapacityLimiter(1)) as spool:
                await fill(spool, 2 * MIB)

    anyio.run(run)
    assert budget.used == 0
    assert budget.hold(HELD_TOGETHER_BYTES)
    assert list(tmp_path.iterdir()) == []
