"""Readings of hosts: the slowdown of each host in a report, and its share of lost GPU-hours."""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
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

# Largest share of a job's hosts that machines are blamed for: a cause on more hosts is due to the
# job's code, data or network.
MOST_AT_FAULT: Final = 0.5
# Maximum of names of a session's processes on a host: a pod for each of its ranks, and the job.
MOST_NAMES: Final = 65
# Least excess of a worker, so that a cause can be divided even if no worker has any excess.
_LEAST_EXCESS: Final = 1e-6


@dataclass(frozen=True, slots=True)
class GpuReading:
    """A GPU of a host in a session."""

    gpu: str  # name in the metadata
    # Slowdown of the job if only one worker of this GPU kept its recorded durations; the maximum
    # over the GPU's workers.
    slowdown: float
    # Time of a worker on this GPU ÷ time of the other DP ranks of its stage, the maximum over
    # workers; None without other ranks.
    computing: float | None
    slow: bool  # whether a cause names a worker here
    uuid: str | None = None  # None if the metadata have none


@dataclass(frozen=True, slots=True)
class Reading:
    """Measurements of a host in a session."""

    host: str
    ranks: int  # ranks of the job on it, traced or not
    workers: int  # workers (DP rank, stage) whose traced rank is on it
    slowdown: float  # as of `GpuReading`
    computing: float | None  # as of `GpuReading`
    # The most expensive cause that blames machines and names a worker on the host; None if there is
    # none.
    cause: str | None
    lost_each_hour: float  # GPU-hours that the job loses by such causes in each hour
    # The most expensive cause that names a worker on the host and does not blame machines.
    other_cause: str | None = None
    gpus: tuple[GpuReading, ...] = ()  # by name; empty if the GPUs are not known
    guessed: bool = False  # whether the host's name may be that of a container
    # Names that schedulers have for the session's processes on it, as the sender claims:
    # ``slurm/81``, ``kubernetes/ml/llama-0``
    launched_as: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, order=True)
class _Gpu:
    """A GPU of a host: its display name, and its UUID ("" if the session does not report it)."""

    name: str
    uuid: str = ""


@dataclass(slots=True)
class _Blame:
    """Costs of the causes that name a host, and the GPUs that these causes name."""

    lost_each_hour: float = 0.0
    causes: dict[str, float] = field(default_factory=dict)
    gpus: set[_Gpu] = field(default_factory=set)


def readings_of(report: Report) -> tuple[Reading, ...]:
    """Return the reading of each host in a report, by host name.

    Without a verdict, only hosts that a cause blames have a reading.

    A host is slow if a cause that blames machines names a worker on it. A large slowdown is not
    enough: a heavy pipeline stage has a large slowdown on any host.
    """
    if report.known_waste is None:
        return ()
    verdict = report.fidelity.verdict
    ranks = Counter(report.hosts.values())
    cells = _cells_by_host(report)
    blamed, others = _blamed(report), _other_causes(report)
    launched_as = _launched_as(report)
    return tuple(
        replace(
            _reading(report, host, ranks[host], cells[host], blamed),
            other_cause=others.get(host),
            launched_as=launched_as[host],
        )
        for host in sorted(cells)
        if verdict or host in blamed
    )


def _reading(
    report: Report, host: str, ranks: int, cells: list[Worker], blamed: Mapping[str, _Blame]
) -> Reading:
    blame = blamed.get(host, _Blame())
    by_gpu: dict[_Gpu, list[Worker]] = {}
    # The recorded times of a worker with several GPUs are not those of the traced GPU alone.
    for worker in cells if gpus_of_worker(report) == 1 else ():
        machine = report.machine(report.rank_of(worker))
        gpu = _gpu(machine.gpu, machine.uuid)
        if gpu is not None:
            by_gpu.setdefault(gpu, []).append(worker)
    # A cause may name a GPU of a worker with several GPUs.
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


def _launched_as(report: Report) -> dict[str, tuple[str, ...]]:
    """Return the launcher's job and the pods of each host, as schedulers name them."""
    launcher = report.whereabouts.launcher
    of_job = {f"{launcher['name']}/{launcher['job']}"} if {"name", "job"} <= set(launcher) else ()
    names: dict[str, set[str]] = {host: set(of_job) for host in report.hosts.values()}
    for rank, pod in report.whereabouts.pods.items():
        if rank in report.hosts:
            names[report.hosts[rank]].add(f"kubernetes/{pod}")
    return {host: tuple(sorted(names[host])[:MOST_NAMES]) for host in names}


def _gpu(name: str | None, uuid: str | None) -> _Gpu | None:
    called = name or short_uuid(uuid)
    return _Gpu(called, uuid or "") if called else None


def _cells_by_host(report: Report) -> dict[str, list[Worker]]:
    cells: dict[str, list[Worker]] = {}
    for dp, row in enumerate(report.workers.rank):
        for pp, rank in enumerate(row):
            host = report.hosts.get(rank)
            if host is not None:
                cells.setdefault(host, []).append((dp, pp))
    return cells


def _slowdown(report: Report, cells: list[Worker]) -> float:
    return max(report.by_worker.exact[dp][pp] for dp, pp in cells)


def _computing(report: Report, cells: list[Worker]) -> float | None:
    """Return the largest ratio of a worker's time to its peers' time, mean of both directions."""
    means = []
    for dp, pp in cells:
        pair = (report.by_worker.forward_ratio[dp][pp], report.by_worker.backward_ratio[dp][pp])
        ratios = [ratio for ratio in pair if ratio is not None]
        if ratios:
            means.append(sum(ratios) / len(ratios))
    return max(means, default=None)


def _blamed(report: Report) -> dict[str, _Blame]:
    """Return the causes by host; the cost of a cause is divided among the workers that it names."""
    hosts = set(report.hosts.values())
    blames: dict[str, _Blame] = {}
    for cause in report.causes:
        if not blames_machine(cause.cause):
            continue
        # A host's or GPU's share of a cause is in proportion to the slowdown by its workers.
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
            blame = blames.setdefault(host, _Blame())
            blame.lost_each_hour += cost * share
            blame.causes[cause.cause] = blame.causes.get(cause.cause, 0.0) + cost * share
            if gpu is not None:
                blame.gpus.add(gpu)
    return blames


def _other_causes(report: Report) -> dict[str, str]:
    """Return by host the leading cause that names a worker on it and does not blame machines."""
    return {
        host: cause.cause
        for cause in reversed(report.causes)  # the most expensive one is the first of them
        if not blames_machine(cause.cause)
        for at in blamed_gpus(report, cause.where)
        if (host := at.host) is not None
    }


def write_readings(tx: UnitOfWork, session_id: uuid.UUID, report: Report | None) -> None:
    """Replace the stored readings of a session by its report's; None deletes them.

    Call this function in the transaction that stores the report, so that readings and report agree.
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
            other_cause=reading.other_cause,
            lost_each_hour=reading.lost_each_hour,
            measured_s=measured_s,
            gpus=[asdict(gpu) for gpu in reading.gpus],
            guessed=reading.guessed,
            launched_as=list(reading.launched_as) or None,
        )
        for reading in readings
    )
    tx.session.flush()
