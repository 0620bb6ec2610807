"""The detection of slow ranks in sent pulses, in spite of invalid and late bodies."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
import zstandard
from sqlalchemy import text

from app.errors import LostClaimError
from app.pulse.advance import (
    MAX_TRIES,
    advance_pulses,
    claim_attempt,
    read_batch,
    store,
)
from app.pulse.body import write_pulse
from tests.integration.api.pulse.sending import STEPS_A_BODY, bodies, detected, shifted, slow_job
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

NOW = timedelta(0)
SENT = "/api/v1/jobs/llm/attempts/1/pulse"


def send(installation: Installation, body: bytes) -> None:
    answer = installation.client.post(SENT, content=body)
    assert answer.status_code == 202, answer.text
    assert answer.json()["pulse_s"] == 5


def take_all(installation: Installation) -> None:
    while advance_pulses(installation.container, NOW):
        pass
    assert installation.rows()["inbox"] == 0


def noticed(installation: Installation) -> dict[str, Any]:
    found: dict[str, Any] = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()
    return found


def end_lease(installation: Installation) -> None:
    with installation.container.engine.begin() as connection:
        connection.execute(text("UPDATE pulse_state SET lease_until = now() - interval '1 s'"))


def test_a_rank_that_gets_slow_is_noticed_while_bodies_come(installation: Installation) -> None:
    job, truth = slow_job()
    packed = (gzip.compress, zstandard.compress, bytes)
    for number, body in enumerate(bodies(job)):
        send(installation, packed[number % 3](body))
        if number % 8 == 7:
            take_all(installation)
    take_all(installation)

    found = noticed(installation)
    (notice,) = found["notices"]
    (expected,) = detected(job.rows(), job.hosts)
    assert (notice["kind"], notice["attempt"]) == ("slow_rank", 1)
    assert notice["ranks"] == list(truth.ranks) == list(expected.ranks)
    assert notice["hosts"] == [job.hosts[truth.ranks[0]]]
    assert notice["from_step"] == truth.from_step
    assert (notice["noticed_step"], notice["noticed_time_ns"], notice["cleared_step"]) == (
        expected.noticed_step,
        expected.noticed_time_ns,
        expected.cleared_step,
    )
    assert notice["evidence"]["sentence"] == expected.evidence.sentence
    assert found["counts"] == {}


def test_a_notice_shows_the_gpu_readings_of_the_slow_rank(
    installation: Installation,
) -> None:
    job, truth = slow_job()
    (slow,) = truth.ranks
    usual: dict[str, Any] = {"clock_mhz": 1965, "temperature_c": 60, "throttle": 4}
    hot = usual | {"clock_mhz": 1230, "temperature_c": 91, "throttle": 0x64, "xids": [79]}

    def said(host: str, readings: dict[int, dict[str, Any]], body: bytes) -> bytes:
        told = [{"rank": rank, **one} for rank, one in readings.items() if job.hosts[rank] == host]
        return json.dumps({**json.loads(body), "hardware": told}).encode()

    sent = list(bodies(job))
    for number, body in enumerate(sent):
        host = json.loads(body)["host"]
        readings = dict.fromkeys(job.hosts, usual)
        if number >= len(sent) - 4:
            readings[slow] = hot
        send(installation, said(host, readings, body))
        if number >= len(sent) - 4:
            take_all(installation)
    (notice,) = noticed(installation)["notices"]
    assert notice["ranks"] == [slow]
    assert notice["evidence"]["hardware"] == (
        f"the GPU of rank {slow} runs at 1,230 MHz where its peers run at 1,965, is slowed down by "
        "its temperature and the hardware's limit of temperature, has 91 °C, its peers 60, "
        "reported XID 79"
    )
    for page in ("/jobs/llm", f"/hosts/{job.hosts[slow]}"):
        assert "runs at 1,230 MHz" in installation.client.get(page).text, page
    # An invalid reading costs its body, but not the following bodies.
    before = noticed(installation)["counts"]
    wrong: list[dict[str, Any]] = [{"clock_mhz": -1}, {"clock_mhz": 1.5}, {"xids": [0] * 17}]
    for one in wrong:
        send(installation, said(job.hosts[slow], {slow: one}, sent[0]))
    take_all(installation)
    after = noticed(installation)
    assert after["counts"] == before | {"pulse.invalid": 3}
    assert after["notices"][0]["evidence"] == notice["evidence"]


@pytest.mark.slow
def test_bodies_that_come_twice_change_nothing_but_are_counted(installation: Installation) -> None:
    job, truth = slow_job()
    all_bodies = list(bodies(job))
    for body in all_bodies:
        send(installation, body)
        send(installation, body)
    take_all(installation)
    for body in all_bodies[-4:]:
        send(installation, body)
    take_all(installation)

    found = noticed(installation)
    assert [one["ranks"] for one in found["notices"]] == [list(truth.ranks)]
    assert set(found["counts"]) <= {"pulse.doubled", "pulse.late"}
    assert sum(found["counts"].values()) == len(job.rows()) + 4 * STEPS_A_BODY * 8


@pytest.mark.slow
def test_rubbish_is_counted_by_code_and_stops_nothing(installation: Installation) -> None:
    job, truth = slow_job()
    rows = job.rows()
    some = rows.take(slice(0, 16))
    document = json.loads(write_pulse(some))

    def changed(**columns: list[Any]) -> bytes:
        return json.dumps({**document, "columns": {**document["columns"], **columns}}).encode()

    rubbish = [
        b"rubbish",
        b"[" * 100_000,
        gzip.compress(write_pulse(some))[:-20],
        gzip.compress(b" " * (5 << 20)),
        json.dumps({**document, "pulse": 2}).encode(),
        changed(step=[float("nan")] * 16),
        changed(step=[0.5] * 16),
        changed(step=[1 << 80] * 16),
        changed(step=[1 << 61] * 16),
        changed(step=[1]),
        changed(compute_ns=[None, 1] * 8),
        changed(compute_ns=[-1] + [0] * 15),
        changed(surprise=[0]),
        write_pulse(shifted(some, -10 * 86_400 * 10**9)),
        write_pulse(shifted(some, 10 * 86_400 * 10**9)),
    ]
    for body in rubbish:
        send(installation, body)
    for body in bodies(job):
        send(installation, body)
    take_all(installation)

    found = noticed(installation)
    counts = found["counts"]
    assert counts.pop("pulse.doubled") + counts.pop("pulse.late", 0) == 8 + 16
    assert counts == {
        "body.too_large": 1,
        "pulse.invalid": 5,
        "pulse.negative": 16,
        "pulse.null": 8,
        "pulse.too_large": 2,
        "pulse.uneven": 1,
        "pulse.unknown_column": 1,
        "pulse.wrong_time": 32,
        "trace.truncated": 1,
    }
    assert [one["ranks"] for one in found["notices"]] == [list(truth.ranks)]

    client = installation.client
    assert client.post(SENT, content=b"").json()["code"] == "pulse.invalid"
    assert client.post(SENT, content=bytes((1 << 20) + 1)).status_code == 413


WORK = """
from app.bootstrap import build
from app.errors import LostClaimError
from app.pulse.advance import advance_pulses
from app.platform.settings import Settings
advance_pulses(build(Settings()))
"""


@pytest.mark.slow
def test_a_worker_killed_while_it_writes_leaves_no_notice_lost_or_doubled(
    installation: Installation,
) -> None:
    job, truth = slow_job()
    for body in bodies(job):
        send(installation, body)
    waiting = installation.rows()["inbox"]
    settings = installation.container.settings
    environment = {
        **os.environ,
        "PACELINE_DATABASE_URL": str(settings.database_url),
        "PACELINE_DATA_DIR": str(settings.data_dir),
    }
    with installation.container.engine.begin() as connection:
        # The worker has written the state in its transaction when it waits for this body's row.
        connection.execute(text("SELECT id FROM inbox ORDER BY id DESC LIMIT 1 FOR UPDATE"))
        with subprocess.Popen([sys.executable, "-c", WORK], env=environment) as worker:  # noqa: S603

            def waits() -> bool:
                with installation.container.engine.connect() as looking:
                    return bool(
                        looking.execute(
                            text(
                                "SELECT count(*) FROM pg_stat_activity WHERE"
                                " wait_event_type = 'Lock' AND query LIKE 'DELETE FROM inbox%'"
                            )
                        ).scalar_one()
                    )

            wait_for(waits, "a worker that writes")
            os.kill(worker.pid, signal.SIGKILL)
            worker.wait(LIMIT_S)
    wait_for(lambda: installation.rows()["inbox"] == waiting, "what is as it was")
    assert advance_pulses(installation.container, NOW) == 0, "its lease is not over"
    end_lease(installation)
    # The first body may have killed the worker, so it is processed alone.
    assert advance_pulses(installation.container, NOW) == 1
    take_all(installation)
    found = noticed(installation)
    assert [one["ranks"] for one in found["notices"]] == [list(truth.ranks)]
    assert found["counts"] == {}
    with installation.container.engine.connect() as connection:
        kept = connection.execute(text("SELECT sum(rows) FROM pulse_block")).scalar_one()
        steps = connection.execute(
            text("SELECT sum(steps) FROM pulse_span WHERE seconds = 60")
        ).scalar_one()
    assert (kept, steps) == (len(job.rows()), job.dials.steps), "none is lost, none is there twice"


def test_a_body_that_no_worker_survives_is_left_out(installation: Installation) -> None:
    container = installation.container
    for body in list(bodies(slow_job()[0]))[:2]:
        send(installation, body)
    for _ in range(MAX_TRIES + 1):
        assert claim_attempt(container, NOW) is not None
        end_lease(installation)
    assert advance_pulses(container, NOW) == 1
    assert advance_pulses(container, NOW) == 1
    assert noticed(installation)["counts"] == {"pulse.worker_killed": 1}


@pytest.mark.slow
def test_a_worker_whose_lease_ran_out_writes_nothing(installation: Installation) -> None:
    container = installation.container
    for body in bodies(slow_job()[0]):
        send(installation, body)
    slow = claim_attempt(container, NOW)
    assert slow is not None
    advance = read_batch(container.within(slow.project_id), slow)
    end_lease(installation)
    take_all(installation)
    before = noticed(installation)
    with pytest.raises(LostClaimError):
        store(container.within(slow.project_id), slow, advance)
    assert noticed(installation) == before
    assert len(before["notices"]) == 1
