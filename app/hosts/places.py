"""On which nodes GPUs were seen: what a machine is called where its name is only guessed.

A GPU keeps its UUID when ranks are renumbered, pods renamed and nodes drained. Where a session
guesses the name of a host, its GPUs say which known machine it is. A GPU that a session names on
another node than before has moved.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from itertools import pairwise
from typing import Final

from sqlalchemy import ARRAY, Text, any_, func, literal, select
from sqlalchemy.dialects.postgresql import insert

from app.analysis.report.document import Report
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.rank_metadata import MovedGpu
from app.hosts.models import GpuPlace
from app.platform.database.unit_of_work import Reads, UnitOfWork

# For so long after it came a GPU is said to have moved; the pages of both hosts always say it.
MOVED_FOR: Final = timedelta(days=30)
# The most that a report names.
MOST_MOVED: Final = 64
# A place is written again after this time, not with each session of each of thousands of GPUs.
REFRESH: Final = timedelta(hours=1)
# Where the name of a host comes from if its GPUs say it.
BY_GPU: Final = "gpu_uuids"


@dataclass(frozen=True, slots=True)
class Place:
    """A host on which a GPU was seen."""

    host: str
    guessed: bool
    first_seen: datetime
    last_seen: datetime


@dataclass(frozen=True, slots=True)
class Move:
    """A GPU that went from one node to another."""

    gpu: str
    before: str
    after: str
    last_seen: datetime  # on the node before
    at: datetime  # first seen on the node after


Places = Mapping[str, Sequence[Place]]


def places_of(tx: Reads, gpus: Iterable[str]) -> dict[str, list[Place]]:
    """Return where each of these GPUs was seen, the latest place first."""
    wanted = sorted(set(gpus))
    found: dict[str, list[Place]] = {}
    if not wanted:
        return found
    for gpu, host, guessed, first_seen, last_seen in tx.session.execute(
        select(
            GpuPlace.gpu, GpuPlace.host, GpuPlace.guessed, GpuPlace.first_seen, GpuPlace.last_seen
        )
        .where(GpuPlace.gpu == any_(literal(wanted, ARRAY(Text))))
        .order_by(GpuPlace.gpu, GpuPlace.last_seen.desc(), GpuPlace.host)
    ):
        found.setdefault(gpu, []).append(Place(host, guessed, first_seen, last_seen))
    return found


def moves_of(tx: Reads, host: str, most: int) -> list[Move]:
    """Return the GPUs that came to a node or went from it, the latest first; no guesses."""
    gpus = tx.session.execute(
        select(GpuPlace.gpu).where(GpuPlace.host == host, GpuPlace.guessed.is_(False))
    ).scalars()
    found = []
    for gpu, places in places_of(tx, gpus).items():
        known = sorted(
            (place for place in places if not place.guessed), key=lambda one: one.first_seen
        )
        found += [
            Move(gpu, before.host, after.host, before.last_seen, after.first_seen)
            for before, after in pairwise(known)
            if host in {before.host, after.host} and _is_other(before.host, after.host)
        ]
    found.sort(key=lambda one: one.gpu)
    found.sort(key=lambda one: (one.at, one.after == host), reverse=True)
    return found[:most]


def with_known_hosts(meta: SessionMeta, known: Places) -> SessionMeta:
    """Return metadata in which a guessed host has the name under which its GPUs are known.

    The most of them decide. It remains a guess: they may have moved.
    """
    guessed = meta.whereabouts.guessed_hosts
    if not guessed:
        return meta
    votes: dict[str, Counter[str]] = {}
    for rank, uuid in meta.uuids.items():
        host = meta.hosts.get(rank)
        if host in guessed and uuid in known:
            votes.setdefault(host, Counter())[known[uuid][0].host] += 1
    names = {
        host: min(found, key=lambda name: (-found[name], name)) for host, found in votes.items()
    }
    named = {host for host in meta.hosts.values() if host not in guessed}
    hosts = {rank: names.get(host, host) for rank, host in meta.hosts.items()}
    guesses = {
        names.get(host, host): why if names.get(host, host) == host else BY_GPU
        for host, why in guessed.items()
        if names.get(host) not in named
    }
    whereabouts = replace(meta.whereabouts, guessed_hosts=guesses)
    return replace(meta, hosts=hosts, whereabouts=whereabouts)


def moved_gpus(meta: SessionMeta, known: Places, received_at: datetime) -> tuple[MovedGpu, ...]:
    """Return the GPUs of a session that were on another node before; guesses do not count."""
    found = []
    for rank, uuid in sorted(meta.uuids.items()):
        host = meta.hosts.get(rank)
        if host is None or host in meta.whereabouts.guessed_hosts:
            continue
        places = [place for place in known.get(uuid, ()) if not place.guessed]
        came = min((one.first_seen for one in places if one.host == host), default=received_at)
        before = next(
            (one for one in places if _is_other(one.host, host) and one.last_seen < received_at),
            None,
        )
        if before is not None and received_at - max(came, before.last_seen) <= MOVED_FOR:
            seen = before.last_seen.astimezone(UTC).isoformat(timespec="seconds")
            found.append(MovedGpu(rank, uuid, before.host, seen))
    return tuple(found)


def _is_other(one: str, host: str) -> bool:
    """Return whether two names are of two nodes, and not one of them with its domain."""
    return one.partition(".")[0] != host.partition(".")[0]


def with_moved(report: Report, moved: Sequence[MovedGpu]) -> Report:
    """Return a report that says which of its GPUs have moved, those that causes name first."""
    blamed = {
        report.rank_of(worker) for cause in report.causes for worker in cause.where.workers
    } | {rank for cause in report.causes for rank in cause.where.ranks}
    ranked = sorted(moved, key=lambda one: (one.rank not in blamed, one.rank))
    return replace(report, moved=tuple(ranked[:MOST_MOVED]))


def write_places(tx: UnitOfWork, report: Report, received_at: datetime) -> None:
    """Write where the GPUs of a session are, as far as that is new."""
    seen = {
        uuid: machine
        for rank in sorted({*report.whereabouts.gpu_uuids, *report.gpus})
        if (uuid := (machine := report.machine(rank)).uuid) and machine.node
    }
    known = places_of(tx, seen)
    rows = [
        {
            "gpu": uuid,
            "host": machine.node,
            "guessed": machine.guessed,
            "first_seen": received_at,
            "last_seen": received_at,
        }
        for uuid, machine in sorted(seen.items())
        if not _is_fresh(known.get(uuid, ()), str(machine.node), machine.guessed, received_at)
    ]
    if not rows:
        return
    added = insert(GpuPlace)
    kept, new = GpuPlace.__table__.c, added.excluded
    tx.session.execute(
        added.on_conflict_do_update(
            index_elements=["gpu", "host", "project_id"],
            set_={
                # Once known, a name is no guess any more.
                "guessed": kept.guessed & new.guessed,
                "first_seen": func.least(kept.first_seen, new.first_seen),
                "last_seen": func.greatest(kept.last_seen, new.last_seen),
            },
        ),
        rows,
    )


def _is_fresh(places: Sequence[Place], host: str, guessed: bool, at: datetime) -> bool:  # noqa: FBT001
    """Return whether a GPU's latest place says this already, and about as late."""
    if not places or places[0].host != host or (places[0].guessed and not guessed):
        return False
    return places[0].first_seen <= at <= places[0].last_seen + REFRESH
