"""Sensor values that distinguish the GPUs of blamed ranks from those of their peers."""

from __future__ import annotations

from dataclasses import replace

import pytest

from app.analysis.pulse.columns import MOST_RANKS
from app.analysis.pulse.gpu_readings import (
    LIVES_NS,
    Reading,
    from_bytes,
    joined,
    to_bytes,
    unlike_peers,
)

NOW_NS = 1_790_000_000_000_000_000
# A GPU under load, at its power limit, like all others.
USUAL = Reading(NOW_NS, 1965, 1980, 61, 690_000, 0x4, 3, 0, 61 << 30)
HOSTS = {rank: f"node-{rank // 4}" for rank in range(8)}


def said(*ranks: int, **unlike: object) -> str | None:
    """Return the reported differences if these ranks' readings differ from all others."""
    readings = {
        rank: replace(USUAL, **unlike) if rank in ranks else USUAL  # type: ignore[arg-type]
        for rank in range(8)
    }
    return unlike_peers(ranks, readings, HOSTS, NOW_NS)


@pytest.mark.parametrize(
    ("unlike", "told"),
    [
        ({}, None),
        # Within the differences of healthy GPUs, and a lower clock because the GPU is idle.
        ({"clock_mhz": 1900, "temperature_c": 69, "throttle": 0x1}, None),
        ({"clock_mhz": None, "throttle": None, "temperature_c": None, "ecc_corrected": None}, None),
        ({"clock_mhz": 1230}, "the GPU of rank 5 runs at 1,230 MHz where its peers run at 1,965"),
        (
            {"throttle": 0x24, "temperature_c": 88},
            "the GPU of rank 5 is slowed down by its temperature, has 88 °C, its peers 61",
        ),
        (
            {"throttle": 0x88},
            "the GPU of rank 5 is slowed down by the hardware and the supply of power",
        ),
        ({"ecc_uncorrected": 2}, "the GPU of rank 5 has 2 uncorrected errors of memory"),
        ({"ecc_corrected": 4203}, "the GPU of rank 5 has 4,203 corrected errors of memory"),
        ({"xids": (79, 79, 48)}, "the GPU of rank 5 reported XID 79, 48"),
    ],
)
def test_only_readings_that_differ_from_peers_are_shown(
    unlike: dict[str, object], told: str | None
) -> None:
    assert said(5, **unlike) == told


def test_where_all_of_a_host_are_blamed_the_others_are_the_peers() -> None:
    told = said(4, 5, 6, 7, clock_mhz=990)
    assert told is not None
    assert told.startswith("the GPU of rank 4 runs at 990 MHz where its peers run at 1,965; ")
    assert told.endswith("; and 1 more")


def test_a_reading_that_is_old_says_nothing() -> None:
    readings = {0: replace(USUAL, clock_mhz=500), 1: USUAL}
    assert unlike_peers([0], readings, HOSTS, NOW_NS + LIVES_NS) is not None
    assert unlike_peers([0], readings, HOSTS, NOW_NS + LIVES_NS + 1) is None
    # Without peers, only values that are faults in themselves are reported.
    assert unlike_peers([0], {0: readings[0]}, {}, NOW_NS) is None
    assert unlike_peers([0], {0: replace(USUAL, xids=(79,))}, {}, NOW_NS) is not None


def test_readings_are_kept_as_they_are() -> None:
    readings = {7: replace(USUAL, xids=(79, 48)), 3: Reading(NOW_NS, clock_mhz=0)}
    assert from_bytes(to_bytes(readings)) == readings
    assert from_bytes(None) == {}


def test_of_each_rank_the_last_reading_is_kept_while_it_says_something() -> None:
    later = replace(USUAL, at_ns=NOW_NS + LIVES_NS, clock_mhz=990)
    old = replace(USUAL, at_ns=NOW_NS - 1)
    assert joined({0: USUAL, 1: USUAL, 2: old}, {1: later}) == {0: USUAL, 1: later}
    assert joined({}, {}) == {}


def test_who_names_more_ranks_than_any_job_has_fills_nothing() -> None:
    many = dict.fromkeys(range(1 << 20, (1 << 20) + MOST_RANKS), USUAL)
    found = joined(many, {3: USUAL, 1 << 31: USUAL})
    assert len(found) == MOST_RANKS
    assert 3 in found
    assert 1 << 31 not in found
