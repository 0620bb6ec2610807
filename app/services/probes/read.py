"""The read side of probes: the latest of a host, against what its like reach elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, Final

from sqlalchemy import ColumnElement, ScalarSelect, Select, func, select, true
from sqlalchemy.dialects.postgresql import distinct_on

from app.db.models.hosts import HostProbe, HostReading
from app.services.probes.verdict import (
    ENOUGH,
    JudgedDevice,
    Measure,
    Peers,
    ProbeOutcome,
    compare,
    judge_device,
    overall,
)

if TYPE_CHECKING:
    from app.db.unit_of_work import Reads

# Drivers and settings change what healthy devices reach.
COUNTS_FOR: Final = timedelta(days=180)
# Of one host, for its file.
MOST_LISTED: Final = 2000
_QUARTILES: Final = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class ProbeView:
    """The latest probe of a host."""

    host: str
    guessed: bool
    at: datetime
    devices: Sequence[JudgedDevice]
    gpus_there: int = 0  # on which the latest session there ran, where it names them

    @property
    def gpus(self) -> int:
        """Return how many GPUs were measured."""
        return sum(device.gpu is not None for device in self.devices)

    @property
    def misses(self) -> bool:
        """Return whether its devices are well, and not all: of a lost GPU nothing is measured."""
        found = overall([device.outcome for device in self.devices])
        return found is ProbeOutcome.CLEARED and self.gpus < self.gpus_there

    @property
    def outcome(self) -> ProbeOutcome:
        """Return what it says of the host."""
        if self.misses:
            return ProbeOutcome.UNCLEAR
        return overall([device.outcome for device in self.devices])


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """A device of a probe, as the file has it."""

    at: datetime
    gpu: str
    uuid: str | None
    model: str
    matmul_tflops: float | None
    memory_copy_gbs: float | None
    host_to_device_gbs: float | None
    device_to_host_gbs: float | None
    all_reduce_gbs: float | None
    fault: str | None


def latest_probe(tx: Reads, host: str) -> ProbeView | None:
    """Return the latest probe of a host; None where it was never probed.

    Each device is held against the latest probes of other hosts' devices of its model, within
    half a year; where these are fewer than four, against those of its own host too.
    """
    last = (
        select(HostProbe.id)
        .where(HostProbe.host == host)
        .order_by(HostProbe.at.desc(), HostProbe.id)
        .limit(1)
        .scalar_subquery()
    )
    found = tx.session.execute(
        select(HostProbe, _gpus_there(host))
        .where(HostProbe.id == last, HostProbe.host == host)
        .order_by(HostProbe.device)
    ).all()
    if not found:
        return None
    rows, gpus_there = [row for row, _ in found], found[0][1] or 0
    peers = _peers(tx, host, {row.model for row in rows}, rows[0].at)
    devices = [
        judge_device(
            row.index,
            row.model,
            row.gpu,
            row.fault,
            {
                measure: compare(value, peers.get((row.model, measure)))
                for measure in Measure
                if (value := getattr(row, measure)) is not None
            },
        )
        for row in rows
    ]
    return ProbeView(host, rows[0].guessed, rows[0].at, devices, gpus_there)


def is_cleared_since(tx: Reads, host: str, since: datetime) -> bool:
    """Return whether the latest probe of a host is of later than that and cleared every device."""
    # Mostly there is none: nothing is compared for that.
    later = select(HostProbe.id).where(HostProbe.host == host, HostProbe.at > since).limit(1)
    if tx.session.execute(later).first() is None:
        return False
    probe = latest_probe(tx, host)
    return (
        probe is not None
        and not (probe.guessed or probe.misses)
        and all(device.outcome is ProbeOutcome.CLEARED for device in probe.devices)
    )


def _gpus_there(host: str) -> ScalarSelect[int]:
    """Return on how many GPUs of a host the latest session that names some ran: one a rank."""
    return (
        select(HostReading.ranks)
        .where(HostReading.host == host, func.jsonb_array_length(HostReading.gpus) > 0)
        .order_by(HostReading.received_at.desc())
        .limit(1)
        .scalar_subquery()
    )


def probes_of(tx: Reads, host: str) -> list[ProbeRow]:
    """Return what probes found of each device of a host, the latest first."""
    rows = tx.session.scalars(
        select(HostProbe)
        .where(HostProbe.host == host)
        .order_by(HostProbe.at.desc(), HostProbe.id, HostProbe.device)
        .limit(MOST_LISTED)
    )
    return [
        ProbeRow(
            row.at,
            row.index,
            row.gpu,
            row.model,
            row.matmul_tflops,
            row.memory_copy_gbs,
            row.host_to_device_gbs,
            row.device_to_host_gbs,
            row.all_reduce_gbs,
            row.fault,
        )
        for row in rows
    ]


def _peers(
    tx: Reads, host: str, models: set[str], until: datetime
) -> dict[tuple[str, Measure], Peers]:
    """Return what devices of each model reach, by model and measure."""
    own = func.coalesce(HostProbe.gpu, HostProbe.host + "/" + HostProbe.index)
    latest = (
        select(HostProbe.model, HostProbe.host, *(getattr(HostProbe, one) for one in Measure))
        .where(HostProbe.model.in_(models), HostProbe.at > until - COUNTS_FOR)
        .ext(distinct_on(own))
        .order_by(own, HostProbe.at.desc())
        .subquery()
    )
    elsewhere = latest.c.host != host
    query: Select[Any] = select(
        latest.c.model,
        *(
            figure
            for measure in Measure
            for where in (elsewhere, true())
            for figure in _figures(latest.c[measure], where)
        ),
    ).group_by(latest.c.model)
    found: dict[tuple[str, Measure], Peers] = {}
    for model, *figures in tx.session.execute(query):
        for at, measure in enumerate(Measure):
            others, quartiles, all_, quartiles_of_all = figures[4 * at : 4 * at + 4]
            if others >= ENOUGH:
                found[model, measure] = Peers(others, *quartiles)
            elif all_:
                found[model, measure] = Peers(all_, *quartiles_of_all)
    return found


def _figures(
    column: ColumnElement[Any], where: ColumnElement[bool]
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    counted = func.count(column).filter(where)
    quartiles = func.percentile_cont(list(_QUARTILES)).within_group(column).filter(where)
    return counted, quartiles
