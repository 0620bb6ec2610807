"""A rank of a real training becomes slow while it runs: noticed, recorded, explained, resolved.

No data are synthetic: ranks of PyTorch send their pulse through the client's public functions and
record the requested session, and processes of an installation do the rest. The test prints the
seconds from the slowdown to each event, and from the recovery to the last ones.

On shared processors, a rank may really compute longer for a while. Notices before the slowdown, and
of other ranks, are therefore printed and fail nothing. For the same reason, notices are looked up
by rank and step, and this job has a larger budget for sessions than others.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import httpx
import pytest

from tests.support.extras import of_real_jobs
from tests.support.nightly import by_night, every_night
from tests.support.serving import serving
from tests.support.waiting import wait_for

of_real_jobs("torch")

from tests.integration.client.lasting import LAST, SLOW  # noqa: E402
from tests.support.served import client_of  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.integration.client.conftest import Jobs
    from tests.support.redis import RedisServer

pytestmark = pytest.mark.slow

RANKS: Final = 4
SLOW_RANK: Final = 2
# Number of steps after which the detection knows the usual durations, on any processor.
KNOWN_STEPS: Final = 150
LIMIT_S: Final = 120.0
TIMES: Final = 10
# No limit, so that a notice of another rank does not use up the session of the slow rank.
BUDGET: Final = {"PACELINE_PULSE_RECORD_SHARE": "1", "PACELINE_PULSE_RECORD_INTERVAL_S": "0"}


@dataclass(frozen=True)
class Slowing:
    """The pause of a step, and the additional pause of the slow rank, in seconds."""

    pause_s: float
    more_s: float


# A step takes some milliseconds in addition to its pause.
BY_HALF: Final = Slowing(0.05, 0.03)
BY_A_FIFTH: Final = Slowing(0.026, 0.0052)


@pytest.fixture(params=["postgresql and redis", *every_night("embedded")])
def url(request: pytest.FixtureRequest, open_dir: Path) -> Iterator[str]:
    """Yield the address of an installation."""
    urls = () if request.param == "embedded" else request.getfixturevalue("urls")
    with serving(open_dir, *urls, settings=BUDGET) as address:
        yield address


@pytest.fixture
def urls(container: Container, redis_server: RedisServer) -> tuple[str, str]:
    """Return the URLs of a database and a broker."""
    return str(container.settings.database_url), redis_server.url


@dataclass
class Watching:
    """Polls the API about a training job, and stores the time of each event."""

    client: httpx.Client
    directory: Path
    began: int = 0
    since_s: float = 0.0
    seen: dict[str, float] = field(default_factory=dict)

    def get(self, path: str, what: str, **query: str) -> list[dict[str, Any]]:
        """Return a list of the API."""
        found: list[dict[str, Any]] = self.client.get(f"/api/v1/{path}", params=query).json()[what]
        return found

    @property
    def job(self) -> str:
        """Return the name of the job."""
        return self.directory.name

    def step(self) -> int:
        """Return the last step that rank 0 has completed."""
        while True:
            try:
                return int((self.directory / "at-0").read_text())
            except FileNotFoundError:
                return -1
            except ValueError:
                time.sleep(0.001)  # it is being written

    def slow(self) -> None:
        """Slow the rank down from now on."""
        self.began = self.step()
        (self.directory / SLOW).touch()
        self.since_s = time.monotonic()

    def well(self) -> None:
        """Let the rank run at its usual speed again."""
        (self.directory / SLOW).unlink()
        self.since_s = time.monotonic()

    def notices(self) -> list[dict[str, Any]]:
        """Return the notices of the slow rank alone since its slowdown."""
        found = self.get(f"jobs/{self.job}/pulse/notices", "notices")
        return [one for one in found if self.is_right(one)]

    def is_right(self, notice: dict[str, Any]) -> bool:
        """Return whether a notice names the slow rank, after its slowdown."""
        return bool(notice["ranks"] == [SLOW_RANK] and notice["noticed_step"] >= self.began)

    def requests(self) -> list[dict[str, Any]]:
        """Return the sessions that were requested because of the slow rank."""
        found = self.get(f"jobs/{self.job}/recordings", "requests")
        return [one for one in found if one["handed"] and f"ank {SLOW_RANK} " in one["reason"]]

    def sessions(self) -> list[dict[str, Any]]:
        """Return the received sessions."""
        return self.get("sessions", "sessions", job=self.job)

    def incidents(self, *states: str) -> list[dict[str, Any]]:
        """Return the incidents in these states that name the slow rank."""
        return [
            one
            for one in self.get("incidents", "incidents")
            if one["job"] == self.job
            and one["state"] in states
            and one["notice"]
            and one["notice"]["number"] in [notice["number"] for notice in self.notices()]
        ]

    def wait(self, what: str, look: Callable[[], list[dict[str, Any]]]) -> dict[str, Any]:
        """Wait for the first result of `look`, and store the time that it took."""
        found = wait_for(look, what, limit_s=LIMIT_S)
        self.seen[what] = time.monotonic() - self.since_s
        return found[0]

    def told(self) -> str:
        """Return a text with the seconds of each event, and with the other notices."""
        words = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.seen.items())
        others = [
            f"{one['kind']} of {one['ranks'] or 'no rank'} at step {one['noticed_step']}"
            for one in self.get(f"jobs/{self.job}/pulse/notices", "notices")
            if not self.is_right(one)
        ]
        noise = "".join(f"; {one}" for one in others)
        return f"{words}; slow from step {self.began}, load {os.getloadavg()[0]:.1f}{noise}"


@contextlib.contextmanager
def training(jobs: Jobs, directory: Path, url: str, slowing: Slowing) -> Iterator[Watching]:
    """Run a job while the context lasts, and yield once the usual durations are known."""
    jobs.start(
        directory,
        *("--kind", "lasting", "--ranks", str(RANKS), "--steps", "1000000", "--no-session"),
        *("--work-s", str(slowing.pause_s), "--slow", str(SLOW_RANK)),
        *("--slow-s", str(slowing.more_s), "--stands-s", "600", "--url", url),
    )
    with client_of(url) as client:
        watching = Watching(client, directory)
        try:
            wait_for(lambda: watching.step() >= KNOWN_STEPS, "steps", limit_s=LIMIT_S)
            yield watching
        finally:
            (directory / LAST).write_text(str(watching.step() + 50))
            trained = jobs.wait(directory)
    assert trained.code == 0, trained.said


def test_a_rank_of_a_training_gets_slow_and_well_again(
    url: str,
    jobs: Jobs,
    tmp_path: Path,
    request: pytest.FixtureRequest,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with training(jobs, tmp_path / "job", url, BY_HALF) as watching:
        watching.slow()
        notice = watching.wait("notice", watching.notices)
        assert (notice["kind"], notice["cleared_step"]) == ("slow_rank", None)
        asked = watching.wait("session asked for", watching.requests)
        assert (asked["steps"], asked["asked_by"]) == (50, None)
        watching.wait("session sent", watching.sessions)
        fired = watching.wait("cause and incident", lambda: watching.incidents("firing"))
        watching.well()
        over = watching.wait("resolved", lambda: watching.incidents("resolved"))
        with capsys.disabled():
            print(f"\n{request.node.callspec.id}: {watching.told()}")  # noqa: T201 - the figures
    assert (fired["notice"]["outcome"], fired["notice"]["cause"]) == ("confirmed", "slow_worker")
    assert (fired["cause"], fired["id"]) == ("slow_rank", over["id"])
    facts = fired["facts"]
    assert facts["causes"][0]["gpus"][0]["rank"] == SLOW_RANK
    # On a busy machine the replay may be too far from the recording for a verdict and a prediction.
    assert [one["dp"] for one in facts["worst"][:1]] == [SLOW_RANK] * (
        facts["slowdown"] is not None
    )
    fix = facts["fix"]
    assert fix is None or fix["gain"] > 0
    assert ("predicted \N{MINUS SIGN}" in over["why_resolved"]) == (fix is not None)
    assert "the pulse is as before" in over["why_resolved"]
    assert "a step takes \N{MINUS SIGN}" in over["why_resolved"]


@by_night
@pytest.mark.parametrize("url", ["postgresql and redis"], indirect=True)
def test_a_fifth_of_short_steps_is_noticed_on_processors_that_others_use(
    url: str, jobs: Jobs, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Runs ten jobs, one after the other; an event that is late is missing in the job's line."""
    kinds = list[str]()
    for number in range(TIMES):
        with training(jobs, tmp_path / f"short-{number}", url, BY_A_FIFTH) as watching:
            watching.slow()
            with contextlib.suppress(AssertionError):
                kinds.append(watching.wait("notice", watching.notices)["kind"])
                watching.wait("session asked for", watching.requests)
                watching.wait("session sent", watching.sessions)
                watching.wait("incident", lambda: watching.incidents("firing", "resolved"))
                watching.well()
                watching.wait("resolved", lambda: watching.incidents("resolved"))
            with capsys.disabled():
                print(f"\n{watching.job}: {watching.told()}")  # noqa: T201 - the figures
    with capsys.disabled():
        print(f"{len(kinds)} of {TIMES} noticed right: {Counter(kinds)}")  # noqa: T201 - the figure
    assert len(kinds) >= TIMES - 2
