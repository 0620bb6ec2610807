"""Stored pulses: blocks, minutes and hours, each once; read, exported, switched off."""

from __future__ import annotations

import csv
import io
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import text

from app.analysis.pulse.columns import Pulses, joined
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.parquet import PulseFile
from app.analysis.synthesis.job import JobModel
from app.analysis.synthesis.pulse_job import PulseDials
from app.analysis.synthesis.synthesize import synthesize
from app.analysis.trace.model import Sizes
from app.pulse.advance import advance_pulses
from app.pulse.body import write_pulse
from app.pulse.models import PulseBlock, PulseSpan
from app.retention.models import RetentionRules
from app.retention.rules import keep_to_rules
from tests.integration.api.pulse.sending import bodies, shifted, slow_job
from tests.integration.api.pulse.test_sending import SENT, noticed, send, take_all
from tests.support.sessions import store

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation

JOB = "/api/v1/jobs/llm/pulse"


def counted(installation: Installation, table: str, what: str = "count(*)") -> Any:  # noqa: ANN401 - a value of a row
    with installation.container.engine.connect() as connection:
        return connection.execute(text(f"SELECT {what} FROM {table}")).scalar_one()  # noqa: S608 - of this file


def exported(installation: Installation, at: Path, query: str = "") -> Pulses:
    answer = installation.client.get(f"{JOB}/export{query}")
    assert answer.status_code == 200, answer.text
    at.write_bytes(answer.content)
    parts = list(PulseFile(at).batches())
    return joined(parts) if parts else joined([slow_job()[0].rows().take(slice(0, 0))])


def sorted_by_rank(rows: Pulses) -> Pulses:
    return rows.take(np.lexsort((rows.step, rows.rank)))


def test_each_step_is_kept_once_and_exported_as_it_was_sent(
    installation: Installation, tmp_path: Path
) -> None:
    job, truth = slow_job()
    for number, body in enumerate(bodies(job)):
        send(installation, body)
        if number % 3 == 0:
            send(installation, body)
        if number % 8 == 7:
            take_all(installation)
    take_all(installation)

    rows = job.rows()
    back = exported(installation, tmp_path / "pulse.parquet")
    # The last steps are stored without a delay, because all ranks have sent them.
    assert len(back) == len(rows)
    for name in ("step", "rank", "dp_rank", "pp_rank", "time_ns", "compute_ns", "tokens"):
        np.testing.assert_array_equal(
            getattr(sorted_by_rank(back), name), getattr(sorted_by_rank(rows), name)
        )
    detector, record = Detector(hosts=job.hosts), Record()
    for batch in PulseFile(tmp_path / "pulse.parquet").batches():
        record.take(detector.advance(batch))
    assert [list(one.ranks) for one in record.listed] == [list(truth.ranks)]
    assert counted(installation, "pulse_block", "sum(rows)") == len(rows)
    assert len(exported(installation, tmp_path / "none.parquet", "?attempt=2")) == 0

    spans = installation.client.get(JOB).json()["spans"]
    assert sum(one["steps"] for one in spans) == job.dials.steps
    assert spans[-1]["slowest"][0]["rank"] == truth.ranks[0]
    assert spans[-1]["slowest"][0]["host"] == job.hosts[truth.ranks[0]]
    assert spans[-1]["slowest"][0]["ratio"] == pytest.approx(1.5, rel=0.1)
    # Per step, because the last minute may have just begun.
    lost_in_a_step = [one["lost_gpu_s"] / one["steps"] for one in spans]
    assert lost_in_a_step[-1] > lost_in_a_step[0]
    step_s = np.median(rows.step_ns) / 1e9
    assert spans[0]["step_median_s"] == pytest.approx(step_s, rel=0.3)
    (*_, hour) = installation.client.get(JOB, params={"resolution": "hour"}).json()["spans"]
    assert hour["ranks"] == len(np.unique(rows.rank))

    answer = installation.client.get(f"{JOB}/map").content
    line, _, cells = answer.partition(b"\n")
    head = json.loads(line)
    found = np.frombuffer(cells, "<u2").reshape(len(head["starts"]), len(head["ranks"]))
    assert head["ranks"] == np.unique(rows.rank).tolist()
    assert int(found[-1, truth.ranks[0]]) == pytest.approx(1_500, rel=0.1)
    assert len(head["starts"]) == len(spans)


def test_metrics_are_those_of_the_last_whole_minute(installation: Installation) -> None:
    job, truth = slow_job()
    for body in bodies(job):
        send(installation, body)
    assert installation.metric("paceline_pulse_waiting") > 0
    take_all(installation)
    with installation.container.engine.begin() as connection:
        connection.execute(text("UPDATE pulse_span SET start = start + interval '1 hour 1 second'"))
        connection.execute(
            text(
                "UPDATE pulse_span SET start = now() - interval '2 minutes' WHERE id ="
                " (SELECT id FROM pulse_span WHERE seconds = 60 ORDER BY start DESC LIMIT 1)"
            )
        )
    assert installation.metric("paceline_pulse_waiting") == 0
    labels = {"project": "default", "job": "llm", "training_job": "llm"}
    assert installation.metric("paceline_job_step_seconds", **labels) > 0
    assert installation.metric("paceline_job_tokens_per_second", **labels) > 0
    assert installation.metric("paceline_job_gpu_hours_lost_total", **labels) > 0
    host = job.hosts[truth.ranks[0]]
    of_host = sorted(rank for rank, name in job.hosts.items() if name == host)
    place = of_host.index(truth.ranks[0])
    ratio = installation.metric("paceline_rank_compute_ratio", gpu=str(place), node=host, **labels)
    assert ratio == pytest.approx(1.5, rel=0.1)


def test_the_file_of_the_fleet_has_what_its_live_column_shows(installation: Installation) -> None:
    model = JobModel(Sizes(dp=8, pp=2), microbatches=2, steps=3)
    for name in ("llm", "still"):
        store(installation.container, synthesize(model, seed=1).trace, job=name)
    job, truth = slow_job()
    for body in bodies(job):
        send(installation, body)
    take_all(installation)
    text_of_file = installation.client.get("/fleet/jobs.csv").text
    rows = {row["job"]: row for row in csv.DictReader(io.StringIO(text_of_file))}
    assert float(rows["llm"]["live_step_s"]) > 0
    assert float(rows["llm"]["live_change"]) > 0
    assert f"ank {truth.ranks[0]} (" in rows["llm"]["live_suspicions"]
    assert {value for key, value in rows["still"].items() if key.startswith("live_")} == {""}


def test_retention_takes_old_rows_but_not_those_around_a_notice(
    installation: Installation,
) -> None:
    for body in bodies(slow_job()[0]):
        send(installation, body)
    take_all(installation)
    container = installation.container
    assert RetentionRules().pulse_rows.days == 0.25
    with container.engine.begin() as connection:
        connection.execute(text("UPDATE pulse_block SET minute = minute - interval '7 hours'"))
        connection.execute(
            text("UPDATE pulse_notice SET noticed_at = noticed_at - interval '7 hours'")
        )
    blocks = counted(installation, PulseBlock.__tablename__)
    assert blocks > 0
    assert keep_to_rules(container) == 0
    with container.engine.begin() as connection:
        connection.execute(text("DELETE FROM pulse_notice"))
        connection.execute(text("UPDATE retention SET looked_at = NULL"))
    assert keep_to_rules(container) == blocks
    spans = counted(installation, PulseSpan.__tablename__)
    with container.engine.begin() as connection:
        connection.execute(text("UPDATE pulse_span SET start = start - interval '91 days'"))
        connection.execute(text("UPDATE retention SET looked_at = NULL"))
    assert keep_to_rules(container) == spans
    assert counted(installation, PulseSpan.__tablename__) == 0


def test_a_project_that_takes_none_refuses_them_by_code(installation: Installation) -> None:
    client = installation.client
    assert client.get("/api/v1/pulse").json() == {"on": True}
    assert client.put("/api/v1/pulse", json={"on": False}).json() == {"on": False}
    body = next(bodies(slow_job()[0]))
    refused = client.post(SENT, content=body)
    assert (refused.status_code, refused.json()["code"]) == (409, "pulse.off")
    assert installation.rows()["inbox"] == 0
    assert installation.rows()["job"] == 0
    client.put("/api/v1/pulse", json={"on": True})
    send(installation, body)
    assert client.put("/api/v1/pulse", json={"on": 1, "more": 2}).status_code == 422


def test_a_host_that_lies_about_time_is_named_and_changes_no_minute(
    installation: Installation,
) -> None:
    job, _ = slow_job(PulseDials(dp=16, pp=2, steps=150, noise=0.02))
    rows = job.rows()
    hosts = np.array([job.hosts[rank] for rank in rows.rank.tolist()])
    liar = str(hosts[0])
    for host in np.unique(hosts).tolist():
        mine = rows.take(hosts == host)
        by_ns = 3 * 3_600 * 10**9 if host == liar else 0
        send(installation, write_pulse(shifted(mine, by_ns), host))
    take_all(installation)
    clocks = noticed(installation)["clocks"]
    assert clocks == {liar: pytest.approx(10_800, abs=2)}
    late = datetime.now(UTC) + timedelta(hours=1)
    spans = installation.client.get(JOB, params={"to": late.isoformat()}).json()["spans"]
    assert sum(one["steps"] for one in spans) == job.dials.steps
    assert max(datetime.fromisoformat(one["start"]) for one in spans) < datetime.now(UTC)


def test_pulses_out_of_order_come_to_the_same(installation: Installation) -> None:
    job, truth = slow_job()
    sent = list(bodies(job))
    for first in range(0, len(sent), 8):
        for body in reversed(sent[first : first + 8]):
            send(installation, body)
    take_all(installation)
    assert [one["ranks"] for one in noticed(installation)["notices"]] == [list(truth.ranks)]
    assert counted(installation, "pulse_block", "sum(rows)") == len(job.rows())


def test_bodies_that_hold_many_seconds_come_one_after_the_other_and_none_is_late(
    installation: Installation,
) -> None:
    """After an outage of the server, one host's steps arrive before those of the other host."""
    job, truth = slow_job()
    sent = list(bodies(job))
    for first in range(0, len(sent), 6):
        for host in range(2):
            for body in sent[first + host : first + 6 : 2]:
                send(installation, body)
            take_all(installation)
    assert noticed(installation)["counts"] == {}
    assert [one["ranks"] for one in noticed(installation)["notices"]] == [list(truth.ranks)]


def test_ranks_that_the_job_does_not_have_are_counted_and_change_nothing(
    installation: Installation,
) -> None:
    """The job's size is known from a session; a sender may announce a larger one."""
    job, truth = slow_job()
    model = JobModel(Sizes(dp=8, pp=2), microbatches=2, steps=3)
    store(installation.container, synthesize(model, seed=1).trace, job="llm")
    rows = job.rows()
    some = rows.take((rows.rank == 3) & (rows.step < 60))
    values = {name: getattr(some, name) for name in some.__dataclass_fields__}
    strange = write_pulse(Pulses(**{**values, "rank": some.rank + 10**6}), "elsewhere")
    grown = json.loads(write_pulse(Pulses(**{**values, "rank": some.rank + 13}), "grown"))
    for number, body in enumerate(bodies(job)):
        if number in {10, 30}:
            take_all(installation)
            send(installation, strange)
        send(installation, body)
    take_all(installation)
    assert noticed(installation)["counts"] == {"pulse.unknown_rank": 2 * 60}
    assert [one["ranks"] for one in noticed(installation)["notices"]] == [list(truth.ranks)]
    head = json.loads(installation.client.get(f"{JOB}/map").content.partition(b"\n")[0])
    assert head["ranks"] == list(range(16))
    # Each rank's host and stage.
    assert [head["hosts"][at] for at in head["host_of"]] == [job.hosts[rank] for rank in range(16)]
    first = rows.take(rows.step == 0)
    stages = dict(zip(first.rank.tolist(), first.pp_rank.tolist(), strict=True))
    assert head["stages"] == [stages[rank] for rank in range(16)]
    send(installation, json.dumps({**grown, "world": 17}).encode())
    take_all(installation)
    assert noticed(installation)["counts"]["pulse.unknown_rank"] == 2 * 60


def test_a_rank_that_says_other_sizes_and_steps_ten_times_too_large_are_counted(
    installation: Installation,
) -> None:
    job, truth = slow_job()
    for body in list(bodies(job))[:120]:
        send(installation, body)
    while advance_pulses(installation.container, timedelta(0)):
        pass
    rows = job.rows()
    wrong = rows.take((rows.rank == 3) & (rows.step >= 60) & (rows.step < 64))
    values = {name: getattr(wrong, name) for name in wrong.__dataclass_fields__}
    moved = Pulses(**{**values, "dp_rank": wrong.dp_rank + 1, "step": wrong.step + 10_000})
    send(installation, write_pulse(moved, job.hosts[3]))
    huge = Pulses(**{**values, "compute_ns": wrong.compute_ns * 10**8})
    send(installation, write_pulse(huge, job.hosts[3]))
    for body in list(bodies(job))[120:]:
        send(installation, body)
    take_all(installation)
    counts = noticed(installation)["counts"]
    assert counts["pulse.sizes_changed"] == 4
    assert counts["pulse.too_large"] == 4
    assert [one["ranks"] for one in noticed(installation)["notices"]] == [list(truth.ranks)]
