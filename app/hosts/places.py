"""Places of GPUs: on which node each GPU was seen, and which GPUs have moved.

A GPU keeps its UUID when ranks are renumbered, pods renamed and nodes drained. If a session can
only guess the name of a host, the UUIDs of its GPUs identify the node. A GPU that a session reports
on another node than before has moved.
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

# Time for which reports name a move; the pages of both hosts list it without limit.
MOVED_FOR: Final = timedelta(days=30)
# Largest number of moved GPUs that a report names.
MOST_MOVED: Final = 64
# Age from which on a stored place is updated: an update with each session would write thousands of
# rows each time.
REFRESH: Final = timedelta(hours=1)
# Source of a host's name that was determined from the UUIDs of its GPUs.
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
    """A move of a GPU from one node to another."""

    gpu: str
    before: str
    after: str
    last_seen: datetime  # on the node before
    at: datetime  # first seen on the node after


Places = Mapping[str, Sequence[Place]]


def places_of(tx: Reads, gpus: Iterable[str]) -> dict[str, list[Place]]:
    """Return the places of each of these GPUs, latest first."""
    wanted = sorted(set(gpus))
    places: dict[str, list[Place]] = {}
    if not wanted:
        return places
    for gpu, host, guessed, first_seen, last_seen in tx.session.execute(
        select(
            GpuPlace.gpu, GpuPlace.host, GpuPlace.guessed, GpuPlace.first_seen, GpuPlace.last_seen
        )
        .where(GpuPlace.gpu == any_(literal(wanted, ARRAY(Text))))
        .order_by(GpuPlace.gpu, GpuPlace.last_seen.desc(), GpuPlace.host)
    ):
        places.setdefault(gpu, []).append(Place(host, guessed, first_seen, last_seen))
    return places


def moves_of(tx: Reads, host: str, most: int) -> list[Move]:
    """Return the moves of GPUs to or from a node, newest first; guessed names do not count."""
    gpus = tx.session.execute(
        select(GpuPlace.gpu).where(GpuPlace.host == host, GpuPlace.guessed.is_(False))
    ).scalars()
    moves = []
    for gpu, places in places_of(tx, gpus).items():
        ordered = sorted(
            (place for place in places if not place.guessed), key=lambda move: move.first_seen
        )
        moves += [
            Move(gpu, before.host, after.host, before.last_seen, after.first_seen)
            for before, after in pairwise(ordered)
            if host in {before.host, after.host} and _is_other(before.host, after.host)
        ]
    moves.sort(key=lambda move: move.gpu)
    moves.sort(key=lambda move: (move.at, move.after == host), reverse=True)
    return moves[:most]


def with_known_hosts(meta: SessionMeta, places: Places) -> SessionMeta:
    """Return metadata with guessed host names replaced by the nodes where their GPUs were seen.

    The majority of the GPUs decides. The name remains a guess, since the GPUs may have moved.
    """
    guessed = meta.whereabouts.guessed_hosts
    if not guessed:
        return meta
    votes: dict[str, Counter[str]] = {}
    for rank, uuid in meta.uuids.items():
        host = meta.hosts.get(rank)
        if host in guessed and uuid in places:
            votes.setdefault(host, Counter())[places[uuid][0].host] += 1
    names = {
        host: min(counts, key=lambda name: (-counts[name], name)) for host, counts in votes.items()
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


def moved_gpus(meta: SessionMeta, stored: Places, received_at: datetime) -> tuple[MovedGpu, ...]:
    """Return the session's GPUs that were on another node before; guessed names do not count."""
    moved = []
    for rank, uuid in sorted(meta.uuids.items()):
        host = meta.hosts.get(rank)
        if host is None or host in meta.whereabouts.guessed_hosts:
            continue
        places = [place for place in stored.get(uuid, ()) if not place.guessed]
        came = min((at.first_seen for at in places if at.host == host), default=received_at)
        before = next(
            (at for at in places if _is_other(at.host, host) and at.last_seen < received_at), None
        )
        if before is not None and received_at - max(came, before.last_seen) <= MOVED_FOR:
            seen = before.last_seen.astimezone(UTC).isoformat(timespec="seconds")
            moved.append(MovedGpu(rank, uuid, before.host, seen))
    return tuple(moved)


def _is_other(name: str, host: str) -> bool:
    """Return whether two names are of different nodes; domain names are ignored."""
    return name.partition(".")[0] != host.partition(".")[0]


def with_moved(report: Report, moved: Sequence[MovedGpu]) -> Report:
    """Return a report with its moved GPUs; GPUs that causes name come first."""
    blamed = {
        report.rank_of(worker) for cause in report.causes for worker in cause.where.workers
    } | {rank for cause in report.causes for rank in cause.where.ranks}
    ranked = sorted(moved, key=lambda gpu: (gpu.rank not in blamed, gpu.rank))
    return replace(report, moved=tuple(ranked[:MOST_MOVED]))


def write_places(tx: UnitOfWork, report: Report, received_at: datetime) -> None:
    """Store the places of a session's GPUs, if a place is new or older than `REFRESH`."""
    seen = {
        uuid: machine
        for rank in sorted({*report.whereabouts.gpu_uuids, *report.gpus})
        if (uuid := (machine := report.machine(rank)).uuid) and machine.node
    }
    stored = places_of(tx, seen)
    rows = [
        {
            "gpu": uuid,
            "host": machine.node,
            "guessed": machine.guessed,
            "first_seen": received_at,
            "last_seen": received_at,
        }
        for uuid, machine in sorted(seen.items())
        if not _is_fresh(
            stored.get(uuid, ()), str(machine.node), received_at, guessed=machine.guessed
        )
    ]
    if not rows:
        return
    added = insert(GpuPlace)
    kept, new = GpuPlace.__table__.c, added.excluded
    tx.session.execute(
        added.on_conflict_do_update(
            index_elements=["gpu", "host", "project_id"],
            set_={
                # If any session reports the name as certain, it is not a guess in the other
                # sessions either.
                "guessed": kept.guessed & new.guessed,
                "first_seen": func.least(kept.first_seen, new.first_seen),
                "last_seen": func.greatest(kept.last_seen, new.last_seen),
            },
        ),
        rows,
    )


def _is_fresh(places: Sequence[Place], host: str, at: datetime, *, guessed: bool) -> bool:
    """Return whether a place equals the latest stored place of its GPU, which is recent."""
    if not places or places[0].host != host or (places[0].guessed and not guessed):
        return False
    return places[0].first_seen <= at <= places[0].last_seen + REFRESH
