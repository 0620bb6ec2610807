"""Use case: write what a probe found into the ledger."""

from __future__ import annotations

import uuid
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING

from sqlalchemy.dialects.postgresql import insert

from app.db.models.hosts import HostProbe
from app.errors import ConflictError
from app.services.hosts.repairs import EARLY
from app.services.probes.verdict import Measure
from app.services.usage.count import count_made
from app.services.usage.quotas import PROBED_DEVICES

if TYPE_CHECKING:
    from app.services.container import Container


@dataclass(frozen=True, slots=True)
class ProbedDevice:
    """What was measured of a device."""

    index: str
    model: str
    gpu: str | None  # its UUID
    fault: str | None
    measures: Mapping[Measure, float]


def note_probe(  # noqa: PLR0913 - what a probe says
    container: Container,
    host: str,
    devices: Sequence[ProbedDevice],
    *,
    probe_id: uuid.UUID,
    at: datetime,
    guessed: bool,
) -> None:
    """Write down a probe of a host; the same one twice is one entry.

    A host that no session named is taken: a sweep probes healthy ones, to compare with.

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
