"""Real jobs in which a rank hangs: the pulse names the rank, the stacks name the place.

A rank waits in a forward pass, in a loader or before a collective, calls collectives in another
order, keeps the interpreter's lock, is stopped, or is killed. Or it is only busy for long, which is
no hang. All time limits are a tenth of the usual ones; at night they are the usual ones. The test
prints the seconds until each event.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.pulse.advance import advance_pulses
from tests.support.nightly import BY_NIGHT, by_night, every_night
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.api.conftest import Install, Installation
    from tests.integration.client.conftest import Jobs, Trained

CULPRIT = 1
LIMIT_S = 120
ENTERED_NOT = "never_entered"
# For each fault: the kind of training, the kind of hang, and a part of its sentence.
FAULTS = {
    "sleep": ("ddp", ENTERED_NOT, "it is in _stand ("),
    "sleep sharded": ("fsdp2", ENTERED_NOT, "it is in _stand ("),
    "sleep in a pipeline": ("pipelining", ENTERED_NOT, "is in _stand ("),
    "forward": ("ddp", ENTERED_NOT, "_in_forward ("),
    "loader": ("ddp", ENTERED_NOT, "it is in Samples.__getitem__ ("),
    "another order": ("ddp", "mismatch", ", called in _call_in_another_order ("),
    "hold the lock": ("ddp", "silent", "one may hold the interpreter's lock"),
    "stop": ("ddp", "silent", "is stopped (a signal or a debugger)"),
    "die": ("ddp", "silent", "has ended"),
}
# By day one fault of each kind with its own sentence.
BY_DAY = ("sleep", "forward", "another order", "hold the lock", "die")
# Faults after which the rank does not continue.
FINAL = {"die"}
# Culprits, if it is not the last rank alone: of two orders of collectives, neither is the right
# one.
BLAMED = {"another order": (0, CULPRIT)}
# Limits in seconds, checked with the usual limits only: with a tenth of them, a busy machine takes
# most of the time.
NOTICED_WITHIN_S = 30
NAMED_WITHIN_S = 30


@dataclass(slots=True)
class Watched:
    """A server with a shortened detection, and a job of two ranks that sends to it."""

    jobs: Jobs
    server: Installation
    directory: Path
    # factor on all time limits
    scale: float
    runs: bool = False

    def start(self, *words: str, stands_s: float = 0.0) -> None:
        """Start a job whose steps take a fifth of a beat, so that each rank sends some beats."""
        self.directory.mkdir()
        os.mkfifo(self._seen)
        self.runs = True
        beat_s = self.server.container.settings.pulse_interval_s
        self.jobs.start(
            self.directory,
            *("--kind", "ddp", "--ranks", "2", "--steps", "20", "--url", self.server.url),
            *("--fault-at", "12", "--no-session", "--pulse-s", str(beat_s)),
            *("--pause-s", str(beat_s / 5), "--stands-s", str(stands_s * self.scale), *words),
        )

    @property
    def _seen(self) -> Path:
        return self.directory / "seen"

    def go_on(self) -> None:
        """Let the hanging rank continue, if there is one."""
        with contextlib.suppress(OSError):
            os.close(os.open(self._seen, os.O_WRONLY | os.O_NONBLOCK))

    def ended(self) -> Trained:
        """Return the job's results, after processing all that it sent."""
        self.runs = False
        trained = self.jobs.wait(self.directory)
        self.advance()
        return trained

    def advance(self) -> None:
        """Process the received bodies."""
        while advance_pulses(self.server.container, timedelta(0)):
            pass

    def notices(self) -> list[dict[str, Any]]:
        """Return the notices so far."""
        self.advance()
        answer = self.server.client.get("/api/v1/jobs/job/pulse/notices")
        return [] if answer.status_code == 404 else list(answer.json()["notices"])

    def hang(self) -> dict[str, Any]:
        """Return the job's hang; empty without one."""
        self.advance()
        listed = self.server.client.get("/api/v1/jobs/job/hangs")
        if listed.status_code != 200 or not listed.json()["hangs"]:
            return {}
        (one,) = listed.json()["hangs"]
        return dict(self.server.client.get(f"/api/v1/hangs/{one['id']}").json())

    def culprits(self) -> list[dict[str, Any]]:
        """Return the culprits named so far."""
        found = self.hang()
        return list(found["document"]["verdict"]["culprits"]) if found else []

    def incident(self) -> tuple[str, str]:
        """Return the cause and the state of the only incident."""
        (incident,) = self.server.client.get("/api/v1/incidents").json()["incidents"]
        return incident["cause"], incident["state"]


@pytest.fixture(params=[0.1, pytest.param(1.0, marks=by_night)], ids=["tenth", "real"])
def watched(
    request: pytest.FixtureRequest, jobs: Jobs, install: Install, tmp_path: Path
) -> Iterator[Watched]:
    """Yield a server with a tenth of the usual limits, or with the usual ones."""
    scale: float = request.param
    with install(hang_after_s=25 * scale, pulse_interval_s=5 * scale) as server:
        watched = Watched(jobs, server, tmp_path / "job", scale)
        yield watched
        if watched.runs:
            watched.go_on()
            watched.ended()


@pytest.mark.parametrize("fault", FAULTS if BY_NIGHT else BY_DAY)
def test_a_rank_that_hangs_is_named_until_it_continues(
    watched: Watched, capsys: pytest.CaptureFixture[str], fault: str
) -> None:
    training, kind, said = FAULTS[fault]
    watched.start("--kind", training, "--fault", fault)
    at = watched.directory / f"at-{CULPRIT}"
    wait_for(lambda: at.exists() and at.read_text() == "11", "the last step", limit_s=LIMIT_S)
    began_s = time.monotonic()
    wait_for(watched.notices, f"a notice of: {fault}", limit_s=LIMIT_S)
    noticed_s = time.monotonic() - began_s
    wait_for(
        lambda: said in "".join(one["evidence"] for one in watched.culprits()),
        f"a culprit of: {fault}",
        limit_s=LIMIT_S,
    )
    named_s = time.monotonic() - began_s
    culprits = watched.culprits()
    assert tuple(one["rank"] for one in culprits) == BLAMED.get(fault, (CULPRIT,))
    assert {one["kind"] for one in culprits} == {kind}
    if watched.scale >= 1:
        assert noticed_s <= NOTICED_WITHIN_S
        assert named_s - noticed_s <= NAMED_WITHIN_S
    assert watched.incident() == ("hang", "firing")

    watched.go_on()
    trained = watched.ended()
    if fault not in FINAL:
        # The rank continues, and the job ends normally.
        assert trained.code == 0, trained.said
        assert watched.hang()["hang"]["over_at"] is not None
        assert watched.incident() == ("hang", "resolved")
    with capsys.disabled():
        print(  # noqa: T201 - the figures
            f"\n{fault}, limits times {watched.scale:g}: noticed {noticed_s:.1f} s after the last "
            f"step, named after {named_s:.1f} s; rank {CULPRIT} {culprits[-1]['evidence']}"
        )


@pytest.mark.parametrize(
    ("does", "stands_s"),
    [
        *every_night((("--fault", "checkpoint"), 180)),
        (("--fault", "evaluation"), 90),
        (("--kind", "compiled"), 90),
    ],
)
def test_long_operations_and_the_end_of_a_job_are_no_hang(
    watched: Watched, does: tuple[str, ...], stands_s: float
) -> None:
    watched.start(*does, stands_s=stands_s)
    trained = watched.ended()
    assert trained.code == 0, trained.said
    # Long enough for a hang to be noticed, if there were one.
    time.sleep(40 * watched.scale)
    assert watched.notices() == []
    assert watched.hang() == {}
    rows = watched.server.client.get("/api/v1/jobs/job/pulse/notices").json()["counts"]
    assert rows == {}
