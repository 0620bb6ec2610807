"""The bodies of a batch, read: rows in the order of time, files, readings, and where ranks are."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.pulse.columns import joined
from app.analysis.pulse.hardware import Reading
from app.analysis.pulse.steps import MOST_RANKS
from app.errors import PacelineError
from app.inputs.pulse.body import read_pulse

if TYPE_CHECKING:
    from collections.abc import Sequence
    from collections.abc import Set as AbstractSet
    from datetime import datetime

    from sqlalchemy import Row

    from app.analysis.pulse.columns import Pulses
    from app.analysis.pulse.detector import Detector
    from app.inputs.hangs.files import HangFile
    from app.inputs.pulse.body import SentPulse

# Rows after which no further body is read.
BATCH_ROWS: Final = 200_000
# Rows are that far from when they came at most: clocks differ, bodies wait.
WRONG_NS: Final = 86_400_000_000_000
WRONG_TIME: Final = "pulse.wrong_time"


@dataclass(slots=True, eq=False)
class Came:
    """What was in bodies.

    Parameters
    ----------
    taken : int
        How many were read, whether they could be or not.
    rows : Pulses or None
        All rows, in the order of time; None without any.
    files : list of HangFile
        What ranks that stand still say of themselves.
    readings : dict of int to Reading
        What GPUs say of themselves, by rank.
    """

    taken: int = 0
    rows: Pulses | None = None
    files: list[HangFile] = field(default_factory=list)
    readings: dict[int, Reading] = field(default_factory=dict)


def read_bodies(
    detector: Detector,
    waiting: Sequence[Row[int, bytes | None, datetime]],
    attempt: int,
    world: int | None,
    counts: Counter[str],
) -> Came:
    """Read bodies until they have `BATCH_ROWS`; remember where their ranks are.

    Parameters
    ----------
    world : int or None
        Ranks of the job by its last session.
    counts : Counter
        Gets what is left out, by code.
    """
    came, parts, size = Came(), [], 0
    watch = detector.watch
    watched = frozenset[int]() if watch is None else frozenset(watch.ranks.tolist())
    if world is not None and max(watched, default=world) >= world:
        world = None  # that session is of another world, or nothing is known yet
    for row in waiting:
        if size >= BATCH_ROWS:
            break
        came.taken += 1
        try:
            sent = read_pulse(row.body or b"", attempt, world)
        except PacelineError as error:
            counts[error.stable_code] += 1
            continue
        counts.update(sent.counts)
        rows = _of_these_days(sent.rows, row.received_at, counts)
        came_ns = int(row.received_at.timestamp() * 1e9)
        parts.append(replace(rows, came_ns=np.full(len(rows), came_ns)))
        _place(detector, watched, rows, sent.host)
        came.files += sent.files
        came.readings |= _readings(sent, came_ns)
        size += len(rows)
    if size:
        together = joined(parts)
        came.rows = together.take(np.argsort(together.time_ns, kind="stable"))
    return came


def _readings(sent: SentPulse, came_ns: int) -> dict[int, Reading]:
    """Return what GPUs say in a body, by rank."""
    return {
        one.rank: Reading(came_ns, **one.model_dump(exclude={"rank", "xids"}), xids=tuple(one.xids))
        for one in sent.readings
    }


def _of_these_days(rows: Pulses, received_at: datetime, counts: Counter[str]) -> Pulses:
    """Return the rows whose time can be that of a body, and count the others."""
    wrong = np.abs(rows.time_ns - int(received_at.timestamp() * 1e9)) > WRONG_NS
    if not wrong.any():
        return rows
    counts[WRONG_TIME] += int(np.count_nonzero(wrong))
    return rows.take(~wrong)


def _place(detector: Detector, watched: AbstractSet[int], rows: Pulses, host: str) -> None:
    """Remember on which host ranks are.

    Of those that are watched it stays as it is: who their peers are follows from it.
    """
    if not host:
        return
    for rank in set(rows.rank.tolist()) - watched:
        if rank in detector.hosts or len(detector.hosts) < MOST_RANKS:
            detector.hosts[rank] = host
