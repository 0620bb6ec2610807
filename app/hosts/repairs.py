"""Repair log of hosts, and whether each repair helped, by the sessions before and after it."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum
from typing import Any, Final

from sqlalchemy import ARRAY, ColumnElement, Text, any_, func, literal, select

from app.access.audit import Action, record
from app.errors import ConflictError, NotFoundError
from app.hosts.models import HostReading, HostRepair
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads

# Number of compared sessions on each side: the latest before the repair, the first after it.
AROUND: Final = 5
# Number of sessions after a repair from which on it is judged: a single session may be slow or fast
# by chance.
ENOUGH: Final = 2


class Outcome(StrEnum):
    """Effect of a repair."""

    HELPED = "helped"
    NO_HELP = "no help"
    # the host was slow neither before nor after the repair
    NO_CHANGE = "no change"
    WORSE = "worse"
    # too few sessions after the repair
    OPEN = "open"


@dataclass(frozen=True, slots=True)
class Level:
    """Slowdown of a host or GPU in a session, and whether a cause names it."""

    slowdown: float
    slow: bool


@dataclass(frozen=True, slots=True)
class Judged:
    """Effect of a repair, and the sessions before and after it."""

    outcome: Outcome
    before: float | None  # median slowdown; None without a session
    after: float | None  # median slowdown; None without a session
    sessions_before: int
    sessions_after: int


def judge(before: Sequence[Level], after: Sequence[Level]) -> Judged:
    """Return the effect of a repair.

    The repair helped if the host was slow before it and in none of at least two sessions after it.

    Parameters
    ----------
    before, after : sequence of Level
        Levels nearest to the repair first; only the first `AROUND` are compared.

    Examples
    --------
    >>> slow, quick = Level(1.4, slow=True), Level(1.0, slow=False)
    >>> judge([slow, slow], [quick, quick]).outcome.value
    'helped'
    >>> judge([slow, slow], [quick]).outcome.value
    'open'
    """
    before, after = before[:AROUND], after[:AROUND]
    slow_before, slow_after = (sum(level.slow for level in part) for part in (before, after))
    if len(after) < ENOUGH:
        outcome = Outcome.OPEN
    elif slow_after:
        outcome = Outcome.NO_HELP if slow_before else Outcome.WORSE
    else:
        outcome = Outcome.HELPED if slow_before else Outcome.NO_CHANGE
    return Judged(outcome, _median(before), _median(after), len(before), len(after))


def _median(levels: Sequence[Level]) -> float | None:
    return statistics.median(level.slowdown for level in levels) if levels else None


# Largest number of repairs that the page of a host lists.
MOST_LISTED: Final = 100
# Tolerance for times in the future, since clocks differ.
EARLY: Final = timedelta(minutes=5)


@dataclass(frozen=True, slots=True)
class Repair:
    """A repair in the log."""

    id: int
    host: str
    gpu: str | None  # None: the whole host
    what: str
    by: str
    at: datetime  # when it was done
    judged: Judged

    @property
    def outcome(self) -> Outcome:
        """Return the effect of the repair."""
        return self.judged.outcome

    @property
    def slowdown_before(self) -> float | None:
        """Return the median slowdown before the repair."""
        return self.judged.before

    @property
    def slowdown_after(self) -> float | None:
        """Return the median slowdown after the repair."""
        return self.judged.after


def note_repair(  # noqa: PLR0913 - the fields of a repair
    container: Container,
    host: str,
    *,
    what: str,
    gpu: str | None = None,
    at: datetime | None = None,
    by: str | None = None,
) -> None:
    """Store a repair of a host.

    Parameters
    ----------
    at : datetime, optional
        Time of the repair; default: now.
    by : str, optional
        Name of the author, if the author is not signed in.

    Raises
    ------
    NotFoundError
        If no session ever named the host.
    ConflictError
        ``repair.in_future``.
    """
    who = container.principal.called(by)
    with container.uow() as tx:
        if not is_known(tx, host):
            raise no_host(host)
        done_at = tx.now if at is None else at
        if done_at > tx.now + EARLY:
            raise ConflictError("A repair is noted once it is done.", code="repair.in_future")
        tx.session.add(
            HostRepair(host=host, gpu=gpu, what=what, by=who.name, at=done_at, noted_at=tx.now)
        )
        record(tx, who, Action.REPAIRED, f"host {host}", detail=what)


def repairs_of(tx: Reads, host: str) -> list[Repair]:
    """Return the repair log of a host, newest first."""
    rows = tx.session.execute(
        select(HostRepair)
        .where(HostRepair.host == host)
        .order_by(HostRepair.at.desc(), HostRepair.id.desc())
        .limit(MOST_LISTED)
    ).scalars()
    return _judged(tx, list(rows))


def latest_repairs(
    tx: Reads, hosts: Collection[str], *, proven_by: ColumnElement[bool] | None = None
) -> dict[str, Repair]:
    """Return the latest repair of each host that has one.

    Parameters
    ----------
    proven_by : condition, optional
        Condition on the readings that judge the repairs; by default all readings do.
    """
    if not hosts:
        return {}
    latest = (
        select(
            HostRepair.id,
            func.row_number()
            .over(
                partition_by=HostRepair.host, order_by=(HostRepair.at.desc(), HostRepair.id.desc())
            )
            .label("recent"),
        )
        .where(HostRepair.host == any_(literal(list(hosts), ARRAY(Text))))
        .subquery()
    )
    rows = tx.session.execute(
        select(HostRepair).join(latest, latest.c.id == HostRepair.id).where(latest.c.recent == 1)
    ).scalars()
    return {repair.host: repair for repair in _judged(tx, list(rows), proven_by)}


def is_known(tx: Reads, host: str) -> bool:
    """Return whether a session has named the host or its repair log has an entry."""
    named = select(HostReading.host).where(HostReading.host == host).limit(1)
    repaired = select(HostRepair.host).where(HostRepair.host == host).limit(1)
    return any(tx.session.execute(query).first() is not None for query in (named, repaired))


def no_host(host: str) -> NotFoundError:
    """Return the error for a host that no session names."""
    return NotFoundError(f"There is no host {host}: no session names it.")


def _judged(
    tx: Reads, rows: list[HostRepair], proven_by: ColumnElement[bool] | None = None
) -> list[Repair]:
    before, after = _around(tx, [row.id for row in rows], proven_by)
    return [
        Repair(
            row.id,
            row.host,
            row.gpu,
            row.what,
            row.by,
            row.at,
            judge(before.get(row.id, []), after.get(row.id, [])),
        )
        for row in rows
    ]


def _around(
    tx: Reads, repairs: list[int], proven_by: ColumnElement[bool] | None
) -> tuple[dict[int, list[Level]], dict[int, list[Level]]]:
    """Return the sessions before and after each repair, nearest to the repair first."""
    later = HostReading.received_at > HostRepair.at
    distance = func.abs(func.extract("epoch", HostReading.received_at - HostRepair.at))
    ranked = (
        select(
            HostRepair.id.label("repair"),
            HostRepair.gpu.label("gpu"),
            later.label("later"),
            HostReading.slowdown.label("slowdown"),
            HostReading.cause.label("cause"),
            HostReading.gpus.label("gpus"),
            func.row_number()
            .over(partition_by=(HostRepair.id, later), order_by=distance)
            .label("nearest"),
        )
        .join(HostReading, HostReading.host == HostRepair.host)
        .where(HostRepair.id.in_(repairs), *([] if proven_by is None else [proven_by]))
        .subquery()
    )
    before: dict[int, list[Level]] = {}
    after: dict[int, list[Level]] = {}
    for row in tx.session.execute(
        select(ranked)
        .where(ranked.c.nearest <= AROUND)
        .order_by(ranked.c.repair, ranked.c.later, ranked.c.nearest)
    ):
        level = _level(row.gpu, row.slowdown, row.cause, row.gpus)
        if level is not None:
            (after if row.later else before).setdefault(row.repair, []).append(level)
    return before, after


def _level(
    gpu: str | None, slowdown: float, cause: str | None, gpus: list[Mapping[str, Any]]
) -> Level | None:
    """Return the level of the repaired host or GPU; None if the session did not trace the GPU."""
    if gpu is None or not gpus:
        return Level(slowdown, cause is not None)
    reading = next((item for item in gpus if gpu in {item["gpu"], item.get("uuid")}), None)
    return None if reading is None else Level(reading["slowdown"], reading["slow"])
