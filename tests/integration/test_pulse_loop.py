"""A rank becomes slow while a job runs: noticed, recorded, explained, fired, recovered, resolved.

Real processes, on PostgreSQL with Redis and with the embedded ones; the test prints the seconds of
each event.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.synthesis.injections.computations import SlowWorker
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.encode import to_parquet
from app.analysis.trace.metadata import metadata_document
from app.analysis.trace.model import Sizes
from tests.support.nightly import by_night, every_night
from tests.support.pulses.live import LiveJob
from tests.support.served import client_of
from tests.support.serving import serving

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from app.platform.container import Container
    from tests.support.redis import RedisServer

# client/test_loop.py has the same with ranks that train, and runs by day.
pytestmark = [pytest.mark.slow, by_night]

SENT = "/api/v1/jobs/live/attempts/1/pulse"


@pytest.fixture(params=["postgresql and redis", *every_night("embedded")])
def url(request: pytest.FixtureRequest, open_dir: Path) -> Iterator[str]:
    """Yield the address of an installation."""
    urls = () if request.param == "embedded" else request.getfixturevalue("urls")
    with serving(open_dir, *urls) as address:
        yield address


@pytest.fixture
def urls(container: Container, redis_server: RedisServer) -> tuple[str, str]:
    """Return the URLs of a database and a broker."""
    return str(container.settings.database_url), redis_server.url


def session_body(hosts: dict[int, str]) -> dict[str, Any]:
    """Return a session of the same job with the same slow worker."""
    job = JobModel(Sizes(dp=8, pp=2), microbatches=8, steps=12)
    trace = synthesize(job, [SlowWorker((5, 1), 1.6)], seed=1).trace
    meta = metadata_document(replace(trace.meta, hosts=hosts))
    return {"meta": (None, json.dumps(meta)), "trace": ("trace.parquet", to_parquet(trace))}


def test_a_rank_gets_slow_and_well_again(
    url: str, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    job, asked = LiveJob(), list[dict[str, Any]]()
    seen: dict[str, float] = {}
    with client_of(url) as client:

        def send(body: bytes) -> None:
            answer = client.post(SENT, content=body)
            assert answer.status_code == 202, answer.text
            if answer.json()["record"]:
                asked.append(answer.json()["record"])

        def incident() -> dict[str, Any]:
            found = client.get("/api/v1/incidents").json()["incidents"]
            assert len(found) <= 1, found
            return found[0] if found else {"state": "none"}

        def is_now(state: str) -> bool:
            return bool(incident()["state"] == state)

        def stopwatch(what: str, since_s: float) -> None:
            seen[what] = time.monotonic() - since_s

        job.run_until(lambda: job.step >= 150, send)
        job.slow, began_s = True, time.monotonic()
        job.run_until(lambda: is_now("pending"), send)
        stopwatch("notice", began_s)
        job.run_until(lambda: bool(asked), send)
        stopwatch("session asked for", began_s)
        body = session_body(job.hosts)
        assert client.post("/api/v1/jobs/live/sessions", files=body).status_code == 202
        stopwatch("session sent", began_s)
        job.run_until(lambda: is_now("firing"), send)
        stopwatch("incident with its cause", began_s)
        fired = incident()
        assert (fired["cause"], fired["where"]) == ("slow_rank", "node-001")
        assert (fired["notice"]["outcome"], fired["notice"]["cause"]) == (
            "confirmed",
            "slow_worker",
        )
        assert fired["facts"]["fix"]["gain"] > 0

        job.slow, well_s = False, time.monotonic()
        job.run_until(lambda: is_now("resolved"), send)
        stopwatch("resolved after it is well", well_s)
        # The step time after the end is not always measured by then: api/pulse/test_loop.py checks
        # it.
        assert "the pulse is as before" in incident()["why_resolved"]
        assert [one["steps"] for one in asked] == [50]
    told = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in seen.items())
    with capsys.disabled():
        print(f"\n{request.node.callspec.id}: {told}; {incident_words(fired)}")  # noqa: T201 - the figures


def incident_words(fired: dict[str, Any]) -> str:
    return f"{fired['notice']['sentence']}"
