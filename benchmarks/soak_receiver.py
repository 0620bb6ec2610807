"""The receiver of the soak: fails as receivers do, and remembers what it heard in which order."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from benchmarks.support.receiver import Got, PostServer, Reply

Failures = Sequence[tuple[str, int]]

# Longer than an attempt may take in the soak.
HANG_S: Final = 2.5

# Ways to fail, and how often each of them among the failures.
FAILURES: Final[Failures] = (
    ("refused", 40),
    ("behind", 25),
    ("silent", 20),  # has heard it, and ends the connection without an answer
    ("closed", 10),  # has not heard it
    ("hung", 5),
)


@dataclass
class Heard:
    """What came to one channel of one group.

    Parameters
    ----------
    bodies : mapping of str to bytes
        By id.
    firing : mapping of str to int
        Incidents by their address that are believed to be going on, and the number of the message
        that last said so.
    highest : int
        The highest number so far; a digest has the number of one of its groups alone.
    latest : str
        The id of what came last.
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
        See `FAILURES`; in addition to those there is ``unheard``: the answer is good, and the
        message is thrown away.
    """

    def __init__(self, failing: float, seed: int, failures: Failures = FAILURES) -> None:
        super().__init__()
        self.failing = failing
        self.failures = failures
        self.heard: dict[tuple[str, str], Heard] = {}
        self.acknowledged: set[str] = set()
        self.requests = self.failed = self.repeated = self.out_of_order = self.changed = 0
        self.digests: set[str] = set()
        self._random = random.Random(seed)  # noqa: S311 - a choice of failures
        self._lock = threading.Lock()

    def url(self, channel: str) -> str:
        """Return the address of a channel."""
        return f"http://127.0.0.1:{self.port}/{channel}"

    def take(self, got: Got) -> Reply | None:
        """Fail or hear a request."""
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
        found = {job: self.heard.setdefault((got.path, job), Heard()) for job in jobs}
        again = [heard for heard in found.values() if id_ in heard.bodies]
        self.repeated += bool(again)
        self.changed += any(heard.bodies[id_] != got.body for heard in again)
        late = [heard for heard in again if heard.latest != id_]
        if of_one is not None and not again:
            # An older one than what was heard already.
            late += [heard for heard in found.values() if number <= heard.highest]
        if late:
            self.out_of_order += 1
        for job, alert in zip(jobs, document["alerts"], strict=True):
            heard = found[job]
            if any(heard is one for one in late) and (again or number < heard.highest):
                continue
            heard.bodies[id_], heard.latest = got.body, id_
            if of_one is not None:
                heard.highest = max(heard.highest, number)
            incident = alert["annotations"]["incident"].rpartition("/")[2]
            if alert["status"] == "firing":
                heard.firing[incident] = number
            else:
                heard.firing.pop(incident, None)
