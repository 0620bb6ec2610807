"""Probes of hosts: storage, comparison with devices of the same model, and texts."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, nonmember
from typing import Any, Final

from sqlalchemy import ColumnElement, Select, func, select, true
from sqlalchemy.dialects.postgresql import distinct_on, insert

from app.analysis.trace.rank_metadata import node_label
from app.analysis.wording import percent
from app.errors import ConflictError
from app.hosts.models import HostProbe, HostReading
from app.hosts.repairs import EARLY
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads
from app.quotas.usage import PROBED_DEVICES, count_made

# Number of devices of a model from which on values are compared: fewer have no meaningful spread.
ENOUGH: Final = 4
# Ratio to the median below which a device may be slow. Healthy devices of a model differ by a few
# percent; SuperBench (ATC 2024) uses 0.95, too.
SLOW_BELOW: Final = 0.95
# Factor of Tukey's fence: values above the fence are within the spread of the other devices.
_FENCE: Final = 1.5


class Measure(StrEnum):
    """Measured quantity of a probe; a larger value is faster."""

    MATMUL = "matmul_tflops"
    MEMORY_COPY = "memory_copy_gbs"
    HOST_TO_DEVICE = "host_to_device_gbs"
    DEVICE_TO_HOST = "device_to_host_gbs"
    ALL_REDUCE = "all_reduce_gbs"


class ProbeOutcome(StrEnum):
    """Verdict of a probe on a device or on a host."""

    CONFIRMED = "confirmed"
    CLEARED = "cleared"
    # below 0.95 of the median, but within Tukey's fence
    UNCLEAR = "unclear"
    # too few devices of the model were probed
    NO_PEERS = "no peers"

    # Outcomes, worst first.
    RANKED = nonmember((CONFIRMED, UNCLEAR, CLEARED, NO_PEERS))


@dataclass(frozen=True, slots=True)
class Peers:
    """Values of one measure for other devices of the same model."""

    count: int
    low: float  # lower quartile
    median: float
    high: float  # upper quartile


@dataclass(frozen=True, slots=True)
class Compared:
    """A measured value; `ratio` is value / median of the peers, None if there are too few peers."""

    value: float
    ratio: float | None
    peers: int
    outcome: ProbeOutcome


@dataclass(frozen=True, slots=True)
class JudgedDevice:
    """A device of a probe, with its compared values and its verdict."""

    index: str
    model: str
    gpu: str | None  # its UUID
    fault: str | None  # why it could not be measured
    measures: Mapping[Measure, Compared]
    outcome: ProbeOutcome

    @property
    def worst(self) -> tuple[Measure, Compared] | None:
        """Return the measure with the worst outcome and least ratio; None if none has peers."""
        compared = [item for item in self.measures.items() if item[1].ratio is not None]
        return min(compared, key=lambda item: _badness(item[1]), default=None)


def compare(value: float, peers: Peers | None) -> Compared:
    """Return the comparison of a measured value with the values of its peers.

    The device is confirmed as slow if the value is below 0.95 of the peers' median and outside of
    Tukey's fence: below the lower quartile by more than 1.5 times the interquartile range.

    Examples
    --------
    >>> h100 = Peers(63, 640.0, 650.0, 655.0)
    >>> [compare(tflops, h100).outcome.value for tflops in (520.0, 645.0)]
    ['confirmed', 'cleared']
    >>> compare(520.0, Peers(63, 500.0, 650.0, 700.0)).outcome.value
    'unclear'
    """
    if peers is None or peers.count < ENOUGH:
        return Compared(value, None, 0 if peers is None else peers.count, ProbeOutcome.NO_PEERS)
    ratio = value / peers.median
    if ratio >= SLOW_BELOW:
        outcome = ProbeOutcome.CLEARED
    elif value < peers.low - _FENCE * (peers.high - peers.low):
        outcome = ProbeOutcome.CONFIRMED
    else:
        outcome = ProbeOutcome.UNCLEAR
    return Compared(value, ratio, peers.count, outcome)


def judge_device(
    index: str,
    model: str,
    gpu: str | None,
    fault: str | None,
    measures: Mapping[Measure, Compared],
) -> JudgedDevice:
    """Return the verdict on a device; a device that could not be measured is confirmed as slow."""
    outcomes = [compared.outcome for compared in measures.values()]
    outcome = ProbeOutcome.CONFIRMED if fault is not None else overall(outcomes)
    return JudgedDevice(index, model, gpu, fault, measures, outcome)


def overall(outcomes: Sequence[ProbeOutcome]) -> ProbeOutcome:
    """Return the worst of several outcomes; ``no peers`` only if all outcomes are ``no peers``.

    Examples
    --------
    >>> overall([ProbeOutcome.CLEARED, ProbeOutcome.NO_PEERS]).value
    'cleared'
    """
    return min(outcomes, key=ProbeOutcome.RANKED.index, default=ProbeOutcome.NO_PEERS)


def badness(device: JudgedDevice) -> tuple[bool, int, float]:
    """Return a sort key that puts the worst device first: failed devices, then slow ones."""
    worst = device.worst
    rank = (ProbeOutcome.RANKED.index(device.outcome), 1.0)
    return device.fault is None, *(rank if worst is None else _badness(worst[1]))


def _badness(figure: Compared) -> tuple[int, float]:
    ratio = 1.0 if figure.ratio is None else figure.ratio
    return ProbeOutcome.RANKED.index(figure.outcome), ratio


@dataclass(frozen=True, slots=True)
class ProbedDevice:
    """Measurements of a device."""

    index: str
    model: str
    gpu: str | None  # its UUID
    fault: str | None
    measures: Mapping[Measure, float]


def note_probe(  # noqa: PLR0913 - the fields of a probe
    container: Container,
    host: str,
    devices: Sequence[ProbedDevice],
    *,
    probe_id: uuid.UUID,
    at: datetime,
    guessed: bool,
) -> None:
    """Store a probe of a host; a repeated request stores nothing.

    Hosts that no session has named are accepted: healthy hosts are probed for comparison.

    Raises
    ------
    ConflictError
        ``probe.in_future``.
    QuotaExceededError
        ``quota.probed_devices``.
    """
    with container.uow() as tx:
        if at > tx.now + EARLY:
            raise ConflictError("A probe is sent once it is done.", code="probe.in_future")
        rows = [
            {
                "id": probe_id,
                "device": number,
                "host": host,
                "guessed": guessed,
                "at": at,
                "index": device.index,
                "model": device.model,
                "gpu": device.gpu,
                "fault": device.fault,
                **{measure.value: device.measures.get(measure) for measure in Measure},
            }
            for number, device in enumerate(devices)
        ]
        tx.session.execute(insert(HostProbe).on_conflict_do_nothing(), rows)
        count_made(tx, container.settings, container.project_id, PROBED_DEVICES)


# Largest age of compared probes: new drivers and settings change the values.
COUNTS_FOR: Final = timedelta(days=180)
# Largest number of probed devices in the file of a host.
MOST_LISTED: Final = 2000
_QUARTILES: Final = (0.25, 0.5, 0.75)


@dataclass(frozen=True, slots=True)
class ProbeView:
    """The latest probe of a host, compared with its peers."""

    host: str
    guessed: bool
    at: datetime
    devices: Sequence[JudgedDevice]
    gpus_there: int = 0  # GPUs of the latest session on the host; 0 if it names none

    @property
    def gpus(self) -> int:
        """Return the number of measured GPUs."""
        return sum(device.gpu is not None for device in self.devices)

    @property
    def misses(self) -> bool:
        """Return whether every measured device is cleared while a GPU could not be measured."""
        outcome = overall([device.outcome for device in self.devices])
        return outcome is ProbeOutcome.CLEARED and self.gpus < self.gpus_there

    @property
    def outcome(self) -> ProbeOutcome:
        """Return the verdict on the host."""
        if self.misses:
            return ProbeOutcome.UNCLEAR
        return overall([device.outcome for device in self.devices])


@dataclass(frozen=True, slots=True)
class ProbeRow:
    """A probed device as a line of the file."""

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
    """Return the latest probe of a host; None if it was never probed.

    Each device is compared with the latest probes of devices of its model on other hosts, at most
    half a year old; if there are fewer than four, also with the other devices of its own host.
    """
    last = (
        select(HostProbe.id)
        .where(HostProbe.host == host)
        .order_by(HostProbe.at.desc(), HostProbe.id)
        .limit(1)
        .scalar_subquery()
    )
    probed = tx.session.execute(
        select(
            HostProbe,
            select(HostReading.ranks)
            .where(HostReading.host == host, func.jsonb_array_length(HostReading.gpus) > 0)
            .order_by(HostReading.received_at.desc())
            .limit(1)
            .scalar_subquery(),
        )
        .where(HostProbe.id == last, HostProbe.host == host)
        .order_by(HostProbe.device)
    ).all()
    if not probed:
        return None
    rows, gpus_there = [row for row, _ in probed], probed[0][1] or 0
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
    """Return whether the latest probe of a host is later than `since` and cleared every device."""
    # A cheap query first, since most hosts have no probe.
    later = select(HostProbe.id).where(HostProbe.host == host, HostProbe.at > since).limit(1)
    if tx.session.execute(later).first() is None:
        return False
    probe = latest_probe(tx, host)
    return (
        probe is not None
        and not (probe.guessed or probe.misses)
        and all(device.outcome is ProbeOutcome.CLEARED for device in probe.devices)
    )


def probes_of(tx: Reads, host: str) -> list[ProbeRow]:
    """Return the probed devices of a host, latest probe first."""
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
    """Return the measured values of probed devices, by model and measure."""
    own = func.coalesce(HostProbe.gpu, HostProbe.host + "/" + HostProbe.index)
    latest = (
        select(
            HostProbe.model, HostProbe.host, *(getattr(HostProbe, measure) for measure in Measure)
        )
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
    peers: dict[tuple[str, Measure], Peers] = {}
    for model, *figures in tx.session.execute(query):
        for at, measure in enumerate(Measure):
            others, quartiles, all_, quartiles_of_all = figures[4 * at : 4 * at + 4]
            if others >= ENOUGH:
                peers[model, measure] = Peers(others, *quartiles)
            elif all_:
                peers[model, measure] = Peers(all_, *quartiles_of_all)
    return peers


def _figures(
    column: ColumnElement[Any], where: ColumnElement[bool]
) -> tuple[ColumnElement[Any], ColumnElement[Any]]:
    counted = func.count(column).filter(where)
    quartiles = func.percentile_cont(list(_QUARTILES)).within_group(column).filter(where)
    return counted, quartiles


# Measure → its name in a sentence, and its unit.
WORDS: Final = {
    Measure.MATMUL: ("matrix products", "TFLOP/s"),
    Measure.MEMORY_COPY: ("memory copies", "GB/s"),
    Measure.HOST_TO_DEVICE: ("copies from the host", "GB/s"),
    Measure.DEVICE_TO_HOST: ("copies to the host", "GB/s"),
    Measure.ALL_REDUCE: ("all-reduce", "GB/s"),
}


def sentence_of(view: ProbeView) -> str:
    """Return a sentence with the verdict of a probe on its host."""
    host = node_label(view.host, guessed=view.guessed)
    if view.outcome is ProbeOutcome.NO_PEERS:
        return (
            f"{host}: nothing to compare with: probe {ENOUGH} or more other devices of its kind "
            f"({', '.join(sorted({device.model for device in view.devices}))})"
        )
    if view.outcome is ProbeOutcome.CLEARED:
        return f"{host}: cleared by probe: no device is under {SLOW_BELOW} of its like's median"
    verdict = "confirmed" if view.outcome is ProbeOutcome.CONFIRMED else "unclear"
    return f"{host}: {verdict} by probe: {reason_of(view)}"


def reason_of(view: ProbeView) -> str:
    """Return the reason why a probe does not clear its host."""
    if view.misses:
        return (
            f"its latest session ran on {view.gpus_there} GPUs, and {view.gpus} of them were there"
        )
    device = min(view.devices, key=badness)
    name = f"GPU {device.index}" if device.gpu else f"device {device.index}"
    if device.fault is not None:
        return f"{name} failed: {device.fault}"
    if device.worst is None:
        return f"{name} has nothing to be compared with"
    measure, figure = device.worst
    what, unit = WORDS[measure]
    return (
        f"{name} reaches {figure.value:,.4g} {unit} in {what}, {percent(figure.ratio or 0.0)} of "
        f"the median of {figure.peers} {device.model}"
    )
