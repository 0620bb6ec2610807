"""Real jobs of which a rank stands still: its pulse says who, its ranks say where, and it is over.

A rank waits in a forward, in a loader or before a collective, calls collectives in another order,
keeps the interpreter's lock, is stopped, or is killed; or it does what may take long, and nothing
is said. All limits are a tenth of the usual ones; at night they are these. The seconds until each
is known are printed.
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
# How the job trains, what is said, and by which kind, while a rank stands still.
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
# By day one of each kind that is said in its own way.
BY_DAY = ("sleep", "forward", "another order", "hold the lock", "die")
# It is over with its rank.
FINAL = {"die"}
# Who is to blame where it is not the last rank alone: neither order is the right one.
BLAMED = {"another order": (0, CULPRIT)}
# With limits as they are; of tests at a tenth a busy machine takes most of the time.
NOTICED_WITHIN_S = 30
NAMED_WITHIN_S = 30


@dataclass(slots=True)
class Watched:
    """A server that notices, and a job of two ranks that sends to it."""

    jobs: Jobs
    server: Installation
    directory: Path
    # by which all limits are multiplied
    scale: float
    runs: bool = False

    def start(self, *words: str, stands_s: float = 0.0) -> None:
        """Begin a job whose steps are a fifth of a beat, so that each rank is heard before."""
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
        """Let the rank go on that stands still, if there is one."""
        with contextlib.suppress(OSError):
            os.close(os.open(self._seen, os.O_WRONLY | os.O_NONBLOCK))

    def ended(self) -> Trained:
        """Return what the job left, all that it sent being read."""
        self.runs = False
        trained = self.jobs.wait(self.directory)
        self.advance()
        return trained

    def advance(self) -> None:
        """Read what came."""
        while advance_pulses(self.server.container, timedelta(0)):
            pass

    def notices(self) -> list[dict[str, Any]]:
        """Return what was noticed until now."""
        self.advance()
        answer = self.server.client.get("/api/v1/jobs/job/pulse/notices")
        return [] if answer.status_code == 404 else list(answer.json()["notices"])

    def hang(self) -> dict[str, Any]:
        """Return the job's hang; nothing while there is none."""
        self.advance()
        listed = self.server.client.get("/api/v1/jobs/job/hangs")
        if listed.status_code != 200 or not listed.json()["hangs"]:
            return {}
        (one,) = listed.json()["hangs"]
        return dict(self.server.client.get(f"/api/v1/hangs/{one['id']}").json())

    def culprits(self) -> list[dict[str, Any]]:
        """Return who is named until now."""
        found = self.hang()
        return list(found["document"]["verdict"]["culprits"]) if found else []

    def incident(self) -> tuple[str, str]:
        """Return the cause and the state of the one incident."""
        (incident,) = self.server.client.get("/api/v1/incidents").json()["incidents"]
        return incident["cause"], incident["state"]


@pytest.fixture(params=[0.1, pytest.param(1.0, marks=by_night)], ids=["tenth", "real"])
def watched(
    request: pytest.FixtureRequest, jobs: Jobs, install: Install, tmp_path: Path
) -> Iterator[Watched]:
    """Yield a server with limits of a tenth of the usual ones, or these."""
    scale: float = request.param
    with install(hang_after_s=25 * scale, pulse_interval_s=5 * scale) as server:
        watched = Watched(jobs, server, tmp_path / "job", scale)
        yield watched
        if watched.runs:
            watched.go_on()
            watched.ended()


@pytest.mark.parametrize("fault", FAULTS if BY_NIGHT else BY_DAY)
def test_a_rank_that_stands_still_is_named_while_it_does_and_over_when_it_goes_on(
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
        # It goes on, and ends.
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
def test_what_may_take_long_and_the_end_of_a_job_are_no_hang(
    watched: Watched, does: tuple[str, ...], stands_s: float
) -> None:
    watched.start(*does, stands_s=stands_s)
    trained = watched.ended()
    assert trained.code == 0, trained.said
    # So long that it would be one if the job had stood still.
    time.sleep(40 * watched.scale)
    assert watched.notices() == []
    assert watched.hang() == {}
    rows = watched.server.client.get("/api/v1/jobs/job/pulse/notices").json()["counts"]
    assert rows == {}
