"""Real jobs of which a rank stands still: its pulse says who, its ranks say where, and it is over.

A rank sleeps, keeps the interpreter's lock, or is stopped, for longer than a server waits; then the
job goes on. The seconds until each is known are printed.
"""

from __future__ import annotations

import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest

from app.services.pulse.advance import advance_pulses
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.api.conftest import Installation
    from tests.integration.client.conftest import Jobs

pytestmark = pytest.mark.slow

CULPRIT = 1
LIMIT_S = 240


@pytest.mark.parametrize(
    ("fault", "kind", "said"),
    [
        ("sleep", "never_entered", "it is in _stand ("),
        ("hold the lock", "silent", "is alive and sleeps"),
        ("stop", "silent", "is stopped (a signal or a debugger)"),
    ],
)
def test_a_rank_that_stands_still_is_named_while_it_does_and_over_when_it_goes_on(  # noqa: PLR0917
    jobs: Jobs,
    installation: Installation,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    fault: str,
    kind: str,
    said: str,
) -> None:
    seen: dict[str, float] = {}
    began_s = time.monotonic()

    def hang() -> dict[str, Any]:
        while advance_pulses(installation.container, timedelta(0)):
            pass
        client = installation.client
        answer = client.get("/api/v1/jobs/job/pulse/notices")
        if answer.is_success and answer.json()["notices"]:
            seen.setdefault("notice", time.monotonic() - began_s)
        listed = client.get("/api/v1/jobs/job/hangs")
        if listed.status_code != 200 or not listed.json()["hangs"]:
            return {}
        (one,) = listed.json()["hangs"]
        found: dict[str, Any] = client.get(f"/api/v1/hangs/{one['id']}").json()
        return found

    def culprits() -> list[dict[str, Any]]:
        found = hang()
        named: list[dict[str, Any]] = found["document"]["verdict"]["culprits"] if found else []
        return named

    jobs.start(
        tmp_path / "job",
        *("--kind", "ddp", "--ranks", "2", "--steps", "20", "--url", installation.url),
        *("--fault", fault, "--fault-at", "12", "--no-session", "--pulse-s", "0.5"),
    )
    wait_for(lambda: said in "".join(one["evidence"] for one in culprits()), fault, limit_s=LIMIT_S)
    seen["culprit"] = time.monotonic() - began_s
    (culprit,) = culprits()
    assert (culprit["rank"], culprit["kind"]) == (CULPRIT, kind)
    (incident,) = installation.client.get("/api/v1/incidents").json()["incidents"]
    assert (incident["cause"], incident["state"]) == ("hang", "firing")

    # It goes on, and ends.
    assert jobs.wait(tmp_path / "job").code == 0
    assert hang()["hang"]["over_at"] is not None
    (incident,) = installation.client.get("/api/v1/incidents").json()["incidents"]
    assert incident["state"] == "resolved"
    with capsys.disabled():
        told = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in seen.items())
        print(f"\n{fault}: {told} after the start; {culprit['evidence']}")  # noqa: T201 - the figures
