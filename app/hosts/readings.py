"""What a report says of each host: how slow it was, and what of the lost time is its own."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Final

from sqlalchemy import delete, select

from app.analysis.diagnosis.causes.registry import blames_machine
from app.analysis.diagnosis.locations import Worker
from app.analysis.report.document import Report
from app.analysis.report.session_verdict import blamed_gpus, gpus_of_worker
from app.analysis.trace.rank_metadata import short_uuid
from app.hosts.models import HostReading
from app.hosts.places import write_places
from app.platform.database.unit_of_work import UnitOfWork
from app.sessions.models.tables import Session

# A cause on a larger share of a job's hosts is the job's: its code, its data, its network.
MOST_AT_FAULT: Final = 0.5
# Share of a slow worker's excess that one without any gets, so that shares can be formed.
_LEAST_EXCESS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU of a host in a session."""

    gpu: str  # as the metadata name it
    # Largest slowdown of the job if only a worker there kept its recorded durations.
    slowdown: float
    # Largest time of a worker there ÷ that of its stage's other DP ranks; None where there are
    # none.
    computing: float | None
    slow: bool  # whether a cause names a worker there
    uuid: str | None = None  # where the metadata say it


@dataclass(frozen=True, slots=True)
class Reading:
    """A host in a session."""

    host: str
    ranks: int  # of the job there, traced or not
    workers: int  # cells of DP rank and stage whose traced rank is there
    # slowdown, computing: as of its GPUs
    slowdown: float
    computing: float | None
    # The most expensive cause that blames the host for a worker there; None where none does.
    cause: str | None
    lost_each_hour: float  # GPU-hours that the job loses in each hour of running by such causes
    gpus: tuple[GpuReading, ...] = ()  # by name; empty where GPUs are not known
    guessed: bool = False  # whether the host's name may be that of a container


@dataclass(frozen=True, slots=True, order=True)
class _Gpu:
    """A GPU of a host: its name as it is shown, and its UUID; empty where that is not known."""

    name: str
    uuid: str = ""


@dataclass(slots=True)
class _Blame:
    """What causes say of a host, or of a GPU of it."""

    lost_each_hour: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)
    gpus: set[_Gpu] = field(default_factory=set)


def readings_of(report: Report) -> tuple[Reading, ...]:
    """Return what a report says of each host, by name; nothing without names of hosts.

    Without a verdict only of hosts that a cause blames: nothing is said of the others.

    Slow is a host whose workers a cause names that blames machines. A large slowdown of its own is
    not enough: a heavy stage has one wherever it runs.
    """
    if report.known_waste is None:
        return ()
    verdict = report.fidelity.verdict
    ranks = Counter(report.hosts.values())
    cells = _cells_by_host(report)
    blamed = _blamed(report)
    return tuple(
        _reading(report, host, ranks[host], cells[host], blamed)
        for host in sorted(cells)
        if verdict or host in blamed
    )


def _reading(
    report: Report, host: str, ranks: int, cells: list[Worker], blamed: Mapping[str, _Blame]
) -> Reading:
    blame = blamed.get(host, _Blame())
    by_gpu: dict[_Gpu, list[Worker]] = {}
    # Of a worker with several GPUs nothing is known of the traced one alone.
    for worker in cells if gpus_of_worker(report) == 1 else ():
        machine = report.machine(report.rank_of(worker))
        gpu = _gpu(machine.gpu, machine.uuid)
        if gpu is not None:
            by_gpu.setdefault(gpu, []).append(worker)
    # Of these a cause may name one.
    for gpu in blame.gpus - set(by_gpu):
        by_gpu[gpu] = []
    return Reading(
        host=host,
        ranks=ranks,
        workers=len(cells),
        slowdown=_slowdown(report, cells),
        computing=_computing(report, cells),
        cause=max(blame.causes, key=blame.causes.__getitem__) if blame.causes else None,
        lost_each_hour=blame.lost_each_hour,
        gpus=tuple(
            GpuReading(
                gpu.name,
                _slowdown(report, workers or cells),
                _computing(report, workers or cells),
                gpu in blame.gpus,
                gpu.uuid or None,
            )
            for gpu, workers in sorted(
                by_gpu.items(), key=lambda item: (len(item[0].name), item[0])
            )
        ),
        guessed=host in report.whereabouts.guessed_hosts,
    )


def _gpu(name: str | None, uuid: str | None) -> _Gpu | None:
    known = name or short_uuid(uuid)
    return _Gpu(known, uuid or "") if known else None


def _cells_by_host(report: Report) -> dict[str, list[Worker]]:
    found: dict[str, list[Worker]] = {}
    for dp, row in enumerate(report.workers.rank):
        for pp, rank in enumerate(row):
            host = report.hosts.get(rank)
            if host is not None:
                found.setdefault(host, []).append((dp, pp))
    return found


def _slowdown(report: Report, cells: list[Worker]) -> float:
    return max(report.by_worker.exact[dp][pp] for dp, pp in cells)


def _computing(report: Report, cells: list[Worker]) -> float | None:
    """Return the largest of the workers' times against their peers, forward and backward alike."""
    found = []
    for dp, pp in cells:
        pair = (report.by_worker.forward_ratio[dp][pp], report.by_worker.backward_ratio[dp][pp])
        known = [ratio for ratio in pair if ratio is not None]
        if known:
            found.append(sum(known) / len(known))
    return max(found, default=None)


def _blamed(report: Report) -> dict[str, _Blame]:
    """Return what causes say of hosts, each cause's cost divided among the workers it names."""
    hosts = set(report.hosts.values())
    found: dict[str, _Blame] = {}
    for cause in report.causes:
        if not blames_machine(cause.cause):
            continue
        # Each host and GPU has the share of the cause by which its workers slow the job down.
        excess: dict[tuple[str, _Gpu | None], float] = {}
        gpus = blamed_gpus(report, cause.where)
        for worker, at in zip(cause.where.workers, gpus, strict=False):
            if at.host is None:
                continue
            place = (at.host, _gpu(at.gpu, at.uuid) if at.one_of == 1 else None)
            own = max(_slowdown(report, [worker]) - 1.0, _LEAST_EXCESS)
            excess[place] = excess.get(place, 0.0) + own
        whole = sum(excess.values())
        shares = {place: own / whole for place, own in excess.items()}
        named = {host for host, _ in shares}
        if not named or (len(hosts) > 1 and len(named) > MOST_AT_FAULT * len(hosts)):
            continue
        cost = report.sizes.world * report.waste_of(cause)
        for (host, gpu), share in shares.items():
            blame = found.setdefault(host, _Blame())
            blame.lost_each_hour += cost * share
            blame.causes[cause.cause] = blame.causes.get(cause.cause, 0.0) + cost * share
            if gpu is not None:
                blame.gpus.add(gpu)
    return found


# ---- Use case: write what reports say of hosts into the ledger ---------------------------------


def write_readings(tx: UnitOfWork, session_id: uuid.UUID, report: Report | None) -> None:
    """Write what a report says of hosts in place of what an earlier one of the session said.

    In the transaction that stores the report: the ledger never says anything else than reports do.

    Parameters
    ----------
    report : Report or None
        None where there is none any more.
    """
    tx.session.execute(delete(HostReading).where(HostReading.session_id == session_id))
    if report is None:
        return
    job_id, received_at = tx.session.execute(
        select(Session.job_id, Session.received_at).where(Session.id == session_id)
    ).one()
    write_places(tx, report, received_at)
    readings = readings_of(report)
    if not readings:
        return
    measured_s = sum(report.step_times.recorded)
    tx.session.add_all(
        HostReading(
            session_id=session_id,
            host=reading.host,
            job_id=job_id,
            received_at=received_at,
            ranks=reading.ranks,
            workers=reading.workers,
            slowdown=reading.slowdown,
            computing=reading.computing,
            cause=reading.cause,
            lost_each_hour=reading.lost_each_hour,
            measured_s=measured_s,
            gpus=[asdict(gpu) for gpu in reading.gpus],
            guessed=reading.guessed,
        )
        for reading in readings
    )
    tx.session.flush()
