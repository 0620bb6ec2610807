"""A job whose steps no longer end is asked for its ranks' stacks, and gets a stored verdict."""

from __future__ import annotations

import json
import time
from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np

from app.analysis.pulse.columns import Pulses
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob
from app.analysis.synthesis.random_pulses import hanging
from app.pulse.advance import advance_pulses
from app.pulse.body import write_pulse
from tests.support.hanging import Hanging, as_json, stack_dump

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.integration.api.conftest import Installation

NOW = timedelta(0)
SENT = "/api/v1/jobs/llm/attempts/1/pulse"
HANGS_S = 90
DIALS = PulseDials(dp=4, steps=60)
WORLD = [(0, 1, 2, 3)]


class Job:
    """A job of four ranks, one of which hangs, that sends the requested diagnostics."""

    def __init__(self, installation: Installation, *, gone: bool = False) -> None:
        self.installation = installation
        rng = stream(1, "hang", str(gone))
        job = PulseJob.healthy(DIALS, rng)
        job.start_ns = time.time_ns() - int((DIALS.steps * DIALS.step_s + HANGS_S) * 1.5e9)
        self.hosts = job.hosts
        self.rows, truth = hanging(job, rng, seconds=HANGS_S, gone=gone)
        (self.culprit,) = truth.ranks
        self.dumps = Hanging(4, [WORLD] * 3, host_stops={self.culprit: 1}).dumps()

    def send(self, rows: Pulses, files: Mapping[str, bytes] | None = None) -> dict[str, Any]:
        """Send and process rows of all hosts; return the last answer."""
        body = json.loads(write_pulse(rows, self.hosts[0]))
        body["files"] = {name: text.decode() for name, text in (files or {}).items()}
        answer = self.installation.client.post(SENT, json=body)
        assert answer.status_code == 202, answer.text
        while advance_pulses(self.installation.container, NOW):
            pass
        found: dict[str, Any] = answer.json()
        return found

    @property
    def last_beats(self) -> Pulses:
        """Return the last row of each rank that still sends."""
        return self.rows.take(self.rows.time_ns > self.rows.time_ns.max() - 6 * 10**9)

    def files(self) -> dict[str, bytes]:
        """Return the diagnostics of each rank, and the process state of a silent rank."""
        waits = stack_dump(("all_reduce", "torch/distributed/distributed_c10d.py", 3012))
        loads = stack_dump(("__next__", "data/packing.py", 212))
        told = {}
        for rank, dump in self.dumps.items():
            told[f"_dump_{rank}.json"] = as_json(dump)
            told[f"stack_{rank}.json"] = loads if rank == self.culprit else waits
        return told

    def hangs(self) -> list[dict[str, Any]]:
        """Return the job's hangs, each with its verdict."""
        client = self.installation.client
        listed = client.get("/api/v1/jobs/llm/hangs").json()["hangs"]
        return [client.get(f"/api/v1/hangs/{one['id']}").json() for one in listed]

    def incidents(self) -> list[dict[str, Any]]:
        """Return all incidents."""
        found: list[dict[str, Any]] = self.installation.client.get("/api/v1/incidents").json()[
            "incidents"
        ]
        return found


def test_files_are_asked_for_while_no_step_ends_and_name_the_line(
    installation: Installation,
) -> None:
    job = Job(installation)
    steps = job.rows.take(job.rows.time_ns < np.median(job.rows.time_ns))
    assert job.send(steps)["files"] is False
    job.send(job.rows)
    assert job.send(job.last_beats)["files"] is True
    (incident,) = job.incidents()
    assert (incident["cause"], incident["state"]) == ("hang", "firing")

    job.send(job.last_beats, job.files())
    job.send(job.last_beats, job.files())

    (hang,) = job.hangs()
    (culprit,) = hang["document"]["verdict"]["culprits"]
    assert (culprit["rank"], culprit["kind"]) == (job.culprit, "never_entered")
    assert (culprit["stack"][0]["line"], culprit["host"]) == (212, job.hosts[job.culprit])
    assert [one["cause"] for one in job.incidents()] == ["hang"]


def test_the_state_of_a_process_that_says_nothing_is_part_of_the_verdict(
    installation: Installation,
) -> None:
    job = Job(installation, gone=True)
    job.send(job.rows)
    files = {name: text for name, text in job.files().items() if f"_{job.culprit}." not in name}
    files[f"process_{job.culprit}.json"] = b'{"process":{"pid":7,"state":"T"}}'
    job.send(job.last_beats, files)

    (hang,) = job.hangs()
    (culprit,) = hang["document"]["verdict"]["culprits"]
    assert (culprit["rank"], culprit["kind"]) == (job.culprit, "silent")
    assert "process 7 is stopped" in culprit["evidence"]


def test_a_job_that_is_only_slow_has_no_culprit_though_its_ranks_speak_of_different_moments(
    installation: Installation,
) -> None:
    job = Job(installation)
    job.send(job.rows)
    assert job.incidents() != []
    # No step ends, but each rank continues to begin operations.
    beats = job.last_beats
    job.send(replace(beats, since_ns=beats.time_ns - 10**9), job.files())
    assert job.hangs() == []

    job.send(beats, job.files())
    assert len(job.hangs()) == 1


def test_files_of_a_job_that_goes_on_are_dropped_and_rubbish_is_counted(
    installation: Installation,
) -> None:
    job = Job(installation)
    steps = job.rows.take(job.rows.time_ns < np.median(job.rows.time_ns))
    job.send(steps, job.files())
    assert job.hangs() == []

    rubbish = {"_dump_0": b"{", "process_1": b'{"process":1}', "a": b"[]", "b": b"what"}
    job.send(job.rows, rubbish)
    counts = installation.client.get("/api/v1/jobs/llm/pulse/notices").json()["counts"]
    assert counts["hang.invalid_dump"] == counts["hang.invalid_process"] == 1
    assert counts["hang.no_rank"] == counts["hang.unknown_file"] == 1
    # Two files of one rank contradict each other, so they are no hang.
    twice = {"stack_1": stack_dump(("a", "b.py", 1)), "stack_01": stack_dump(("a", "b.py", 1))}
    job.send(job.last_beats, twice)
    assert len(job.hangs()) == 1
