"""The receiver and the judge of the soak test.

The receiver fails in the usual ways, and stores the accepted messages in order. The judge compares
them with the incidents of the jobs. A delivery is due unless it is superseded; for a delivery that
is part of a digest, the digest is due. Lost are: a due delivery that was not accepted, one that was
repeated with other content, an incident that was never opened, and every incident whose final state
differs at the receiver.
"""

from __future__ import annotations

import random
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from sqlalchemy import func, select

from app.incidents.grouping import visible
from app.incidents.models.tables import AlertDelivery, AlertGroup, AlertIncident
from app.incidents.store import incident_of
from app.jobs.models import Job
from benchmarks.support.receiver import Got, PostServer, Reply

if TYPE_CHECKING:
    from collections.abc import Mapping

    from app.platform.container import Container

Failures = Sequence[tuple[str, int]]

# Longer than the time limit of an attempt in the soak test.
HANG_S: Final = 2.5

# Kinds of failures, and the relative frequency of each.
FAILURES: Final[Failures] = (
    ("refused", 40),
    ("behind", 25),
    ("silent", 20),  # has heard it, and ends the connection without an answer
    ("closed", 10),  # has not heard it
    ("hung", 5),
)


@dataclass
class ChannelMessages:
    """Messages to one channel about one group.

    Parameters
    ----------
    bodies : mapping of str to bytes
        Messages by id.
    firing : mapping of str to int
        Addresses of the incidents that are firing by the messages, each with the number of the
        latest message about it.
    highest : int
        Highest message number; a digest has the number of only one of its groups.
    latest : str
        Id of the latest message.
    """

    bodies: dict[str, bytes] = field(default_factory=dict)
    firing: dict[str, int] = field(default_factory=dict)
    highest: int = -1
    latest: str = ""


class Receiver(PostServer):
    """An HTTP server whose paths are channels.

    Parameters
    ----------
    failing : float
        Share of the requests that fail.
    seed : int
    failures : sequence of pair of str and int
        See `FAILURES`; additionally ``unheard``: the answer is a success, but the message is
        discarded.
    """

    def __init__(self, failing: float, seed: int, failures: Failures = FAILURES) -> None:
        super().__init__()
        self.failing = failing
        self.failures = failures
        self.messages: dict[tuple[str, str], ChannelMessages] = {}
        self.acknowledged: set[str] = set()
        self.requests = self.failed = self.repeated = self.out_of_order = self.changed = 0
        self.digests: set[str] = set()
        self._random = random.Random(seed)  # noqa: S311 - a choice of failures
        self._lock = threading.Lock()

    def url(self, channel: str) -> str:
        """Return the address of a channel."""
        return f"http://127.0.0.1:{self.port}/{channel}"

    def take(self, got: Got) -> Reply | None:
        """Fail, or accept a request."""
        with self._lock:
            self.requests += 1
            way = self._way()
            self.failed += way != "taken"
        if way == "unheard":
            return Reply()
        if way == "closed":
            return None
        if way in ("refused", "behind"):
            return Reply(500 if way == "refused" else 429, headers={"Retry-After": "1"})
        with self._lock:
            self._hear(got, acknowledged=way == "taken")
        if way == "taken":
            return Reply()
        if way == "hung":
            time.sleep(HANG_S)
        return None

    def _way(self) -> str:
        if self._random.random() >= self.failing:
            return "taken"
        ways = [way for way, _ in self.failures]
        return self._random.choices(ways, [weight for _, weight in self.failures])[0]

    def _hear(self, got: Got, *, acknowledged: bool) -> None:
        document = got.json
        id_, number = got.headers["webhook-id"], int(got.headers["paceline-sequence"])
        if acknowledged:
            self.acknowledged.add(id_)
        of_one = document["groupLabels"].get("job")
        if of_one is None:
            self.digests.add(id_)
        jobs = [of_one or alert["labels"]["job"] for alert in document["alerts"]]
        by_job = {job: self.messages.setdefault((got.path, job), ChannelMessages()) for job in jobs}
        again = [messages for messages in by_job.values() if id_ in messages.bodies]
        self.repeated += bool(again)
        self.changed += any(messages.bodies[id_] != got.body for messages in again)
        late = [messages for messages in again if messages.latest != id_]
        if of_one is not None and not again:
            # An older message than the latest one arrived out of order.
            late += [messages for messages in by_job.values() if number <= messages.highest]
        if late:
            self.out_of_order += 1
        for job, alert in zip(jobs, document["alerts"], strict=True):
            messages = by_job[job]
            if any(messages is other for other in late) and (again or number < messages.highest):
                continue
            messages.bodies[id_], messages.latest = got.body, id_
            if of_one is not None:
                messages.highest = max(messages.highest, number)
            incident = alert["annotations"]["incident"].rpartition("/")[2]
            if alert["status"] == "firing":
                messages.firing[incident] = number
            else:
                messages.firing.pop(incident, None)


CHANNELS: Final = ("first", "second", "third")


@dataclass(frozen=True, slots=True)
class Made:
    """The true incidents and slow hosts of the jobs, for comparison.

    Parameters
    ----------
    incidents : int
        Number of incidents.
    slow : mapping of str to frozenset of str
        Hosts that are slow at the end, by job.
    """

    incidents: int
    slow: Mapping[str, frozenset[str]]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Result of the soak test."""

    due: int
    delivered: int
    lost: int
    out_of_order: int

    @property
    def line(self) -> str:
        """Return the last printed line."""
        return (
            f"due {self.due}, delivered {self.delivered}, lost {self.lost}, "
            f"out of order {self.out_of_order}"
        )

    @property
    def good(self) -> bool:
        """Return whether all due messages arrived in order."""
        return self.due == self.delivered > 0 and self.lost == 0 == self.out_of_order


def judge(container: Container, receiver: Receiver, made: Made) -> Verdict:
    """Compare the due messages with the received ones."""
    with container.uow() as tx:
        due = {
            f"msg_{id_.hex}"
            for id_ in tx.session.execute(
                # Messages that are part of a digest are received under the digest's id.
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
    """Count the incidents that were not opened, and those whose state differs at a channel."""
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
    messages = receiver.messages.get((f"/{channel}", job))
    believed = set(messages.firing) if messages else set()
    if believed != present:
        _say(
            f"{channel}, {job}: {len(present - believed)} not known, "
            f"{len(believed - present)} believed although over"
        )
    return len(believed ^ present)


def _say(line: str) -> None:
    print(line, file=sys.stderr)
