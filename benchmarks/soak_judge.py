"""The judge of the soak: what was done to the jobs, against what the receiver heard.

A delivery is due unless it is superseded; of those that ride with a digest, the digest is. Lost is
one that is due and was not taken, one that came again with other words, an incident that was never
opened, and every incident about which the receiver's belief is wrong in the end.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.incidents.grouping import visible
from app.incidents.models.tables import AlertDelivery, AlertGroup, AlertIncident
from app.incidents.store import incident_of
from app.jobs.models import Job

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container
    from benchmarks.soak_receiver import Receiver

CHANNELS: Final = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Made:
    """What was done to the jobs, which is the truth that all is judged by.

    Parameters
    ----------
    incidents : int
        How many there have been.
    slow : mapping of str to frozenset of str
        Hosts that are slow in the end, by job.
    """

    incidents: int
    slow: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """What came of it."""

    due: int
    delivered: int
    lost: int
    out_of_order: int

    @property
    def line(self) -> str:
        """Return the line that is printed last."""
        return (
            f"due {self.due}, delivered {self.delivered}, lost {self.lost}, "
            f"out of order {self.out_of_order}"
        )

    @property
    def good(self) -> bool:
        """Return whether all that was due arrived, in order."""
        return self.due == self.delivered > 0 and self.lost == 0 == self.out_of_order


def judge(container: Container, receiver: Receiver, made: Made) -> Verdict:
    """Compare what was due with what the receiver heard."""
    with container.uow() as tx:
        due = {
            f"msg_{id_.hex}"
            for id_ in tx.session.execute(
                # What rides with a digest is heard under the digest's id.
                select(func.coalesce(AlertDelivery.digest_id, AlertDelivery.id)).where(
                    AlertDelivery.state != "superseded"
                )
            ).scalars()
        }
    missing = due - receiver.acknowledged
    if receiver.changed:
        _say(f"{receiver.changed} came again with other words")
    return Verdict(
        due=len(due),
        delivered=len(due & receiver.acknowledged),
        lost=len(missing) + receiver.changed + _not_opened(container, receiver, made),
        out_of_order=receiver.out_of_order,
    )


def _not_opened(container: Container, receiver: Receiver, made: Made) -> int:
    """Count the incidents that were not opened, and those that channels are wrong about."""
    with container.uow() as tx:
        rows = tx.session.execute(
            select(Job.name, AlertIncident)
            .join(AlertGroup, AlertGroup.job_id == Job.id)
            .join(AlertIncident, AlertIncident.group_id == AlertGroup.id)
        ).all()
    going_on: dict[str, dict[str, str]] = {job: {} for job in made.slow}
    for job, row in rows:
        for shown in visible([incident_of(row)]):
            going_on.setdefault(job, {})[str(shown.id)] = shown.where
    wrong = abs(made.incidents - len(rows))
    if wrong:
        _say(f"{made.incidents} incidents were made, {len(rows)} opened")
    for job, present in going_on.items():
        hosts = sorted(made.slow.get(job, ()))
        if sorted(present.values()) != hosts:
            wrong += 1
            _say(f"{job}: {hosts} are slow, not {sorted(present.values())}")
        wrong += sum(_wrong_beliefs(receiver, name, job, set(present)) for name in CHANNELS)
    return wrong


def _wrong_beliefs(receiver: Receiver, channel: str, job: str, present: set[str]) -> int:
    heard = receiver.heard.get((f"/{channel}", job))
    believed = set(heard.firing) if heard else set()
    if believed != present:
        _say(
            f"{channel}, {job}: {len(present - believed)} not known, "
            f"{len(believed - present)} believed although over"
        )
    return len(believed ^ present)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
