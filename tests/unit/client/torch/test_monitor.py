"""A job of one rank, from `attach` to the bodies on the server."""

from __future__ import annotations

import gc
import gzip
import json
import logging
import re
import threading
from typing import TYPE_CHECKING, Any

import pytest

from tests.support.extras import of_real_jobs
from tests.unit.client.conftest import Answer, Receiver

torch = of_real_jobs("torch")

import paceline_client.torch as paceline  # noqa: E402
from paceline_client.delivery import RetryPolicy  # noqa: E402
from paceline_client.torch.layout import Layout  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class Job:
    """A job with a model of two layers and two microbatches a step."""

    def __init__(self, url: str, spool: Path, **how: Any) -> None:  # noqa: ANN401
        layers = torch.nn.ModuleList([torch.nn.Linear(4, 4) for _ in range(2)])
        self.model = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=0.1)
        self.monitor = paceline.attach(
            url, "llama", model=self.model, warmup=1, spool=spool, **{"every": None, **how}
        )

    def train(self, steps: int) -> None:
        for _ in range(steps):
            for _ in range(2):
                self.model(torch.zeros(1, 4)).sum().backward()
            with torch.no_grad():
                self.model(torch.zeros(1, 4))
            self.optimizer.step()
            self.monitor.step()


@pytest.fixture
def job(receiver: Receiver, tmp_path: Path) -> Iterator[Job]:
    receiver.answers = [Answer(status=201, document={"attempt": 2})]
    job = Job(receiver.url, tmp_path)
    yield job
    job.monitor.close()


def sent(receiver: Receiver) -> tuple[str, dict[str, Any], list[dict[str, Any]]]:
    request = receiver.requests[-1]
    header, *rows = [json.loads(line) for line in gzip.decompress(request.body).splitlines()]
    return request.path, header["meta"], rows


def test_labels_of_the_job_override_those_of_its_scheduler(
    receiver: Receiver, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_JOB_USER", "ada")
    monkeypatch.setenv("SLURM_JOB_PARTITION", "h100")
    receiver.answers = [Answer(status=201, document={"attempt": 1})]
    job = Job(receiver.url, tmp_path, labels={"owner": "search"})
    job.monitor.record(1, at=2)
    job.train(4)
    job.monitor.wait(30)
    labels = sent(receiver)[1]["labels"]
    job.monitor.close()
    assert labels == {"owner": "search", "partition": "h100"}


def test_a_window_of_steps_is_recorded_and_sent(job: Job, receiver: Receiver) -> None:
    job.monitor.record(3, at=2)
    job.train(2)
    assert job.monitor.recording
    job.monitor.describe({"sequence_lengths": {"2": [[[5], [5]]]}})
    job.train(4)
    assert not job.monitor.recording
    outcome = job.monitor.wait(30)

    assert outcome is not None
    assert outcome.error is None
    path, meta, rows = sent(receiver)
    assert path.startswith("/api/v1/jobs/llama/attempts/2/sessions/3/chunks/rank-0/0")
    assert meta["sequence_lengths"] == {"2": [[[5], [5]]]}
    assert (meta["dp"], meta["pp"], meta["world"]) == (1, 1, 1)
    assert meta["recorded_by"]["level"] == "p2p"
    computed = [(row["step"], row["op"], row.get("mb")) for row in rows if row["op"] != "gc"]
    assert computed == [
        (step, *what)
        for step in (2, 3, 4)
        for what in (
            ("forward-compute", 0),
            ("backward-compute", 0),
            ("forward-compute", 1),
            ("backward-compute", 1),
            ("optimizer", None),
        )
    ]


def test_what_a_closure_computes_is_no_part_of_the_optimizer(job: Job, receiver: Receiver) -> None:
    def closure() -> Any:  # noqa: ANN401
        loss = job.model(torch.zeros(1, 4)).sum()
        loss.backward()
        return loss

    job.monitor.record(1, at=1)
    job.monitor.step()
    job.optimizer.step(closure)
    job.monitor.step()
    assert job.monitor.wait(30) is not None
    rows = {row["op"]: row for row in sent(receiver)[2]}
    backward, optimizer = rows["backward-compute"], rows["optimizer"]
    assert optimizer["start_ns"] >= backward["start_ns"] + backward["dur_ns"]


def test_the_garbage_collector_is_recorded_where_it_takes_long(
    job: Job, receiver: Receiver
) -> None:
    job.monitor.record(1, at=1)
    job.train(1)
    gc.collect()
    job.train(1)
    assert job.monitor.wait(30) is not None
    assert "gc" in {row["op"] for row in sent(receiver)[2]}


def test_everything_is_taken_off_when_the_monitor_is_closed(
    receiver: Receiver, tmp_path: Path
) -> None:
    before = len(gc.callbacks)
    job = Job(receiver.url, tmp_path)
    job.monitor.record(5, at=1)
    job.train(2)
    assert len(gc.callbacks) == before + 1
    job.monitor.close(wait_s=0)
    assert len(gc.callbacks) == before
    assert torch.autograd.backward.__module__ == "torch.autograd"
    assert not hasattr(torch.autograd.backward, "__wrapped__")
    job.train(1)


@pytest.mark.parametrize(
    ("how", "says"),
    [
        ({"every": "soon"}, "every must be a time"),
        ({"level": "everything"}, "EVERYTHING"),
        ({"layout": paceline.Layout(dp=1), "steps": 0}, "steps must be at least 1"),
    ],
)
def test_an_object_that_cannot_be_attached_to_is_logged_and_breaks_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: dict[str, Any], says: str
) -> None:
    model = torch.nn.Linear(1, 1)
    with caplog.at_level(logging.WARNING, "paceline_client"):
        monitor = paceline.attach(
            "http://127.0.0.1:9", "llama", model=model, spool=tmp_path, **{"every": None, **how}
        )
    assert says in caplog.text
    monitor.record(5, at=0)
    with monitor.span("forward-compute", mb=0):
        model(torch.zeros(1, 1)).sum().backward()
    monitor.step()
    monitor.close()
    assert monitor.outcomes == []


def test_the_end_of_the_job_is_sent_unless_an_exception_ends_it(
    receiver: Receiver, tmp_path: Path
) -> None:
    def told() -> int:
        return sum(one.path == "/api/v1/jobs/llama/finish" for one in receiver.requests)

    job = Job(receiver.url, tmp_path)
    job.train(1)
    job.monitor.close()
    job.monitor.close()
    assert told() == 1

    failing = Job(receiver.url, tmp_path)
    with pytest.raises(RuntimeError):  # noqa: PT012 - as a loop of users does
        try:
            raise RuntimeError("out of memory")
        finally:
            failing.monitor.close()
    assert told() == 1


def periodic(receiver: Receiver, spool: Path, **how: Any) -> None:  # noqa: ANN401
    """Run a job until its first periodic window has begun, and the server was checked."""
    job = Job(receiver.url, spool, every="30min", steps=4, **how)
    job.train(9)
    job.monitor.close()
    for thread in threading.enumerate():
        if thread.name == "paceline-server-check":
            thread.join(30)


def test_a_job_says_once_which_steps_are_recorded_and_where(
    receiver: Receiver, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    receiver.answers = [Answer(status=201, document={"attempt": 1})] * 2
    periodic(receiver, tmp_path)
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("paceline: ")]
    first = re.fullmatch(
        rf"paceline: attached to job llama: records steps (\d+) to (\d+), then every 30 min; "
        rf"{receiver.url}/jobs/llama",
        said[0],
    )
    assert first is not None
    assert int(first[2]) - int(first[1]) == 3
    assert len(said) == 1


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (Answer(401, {"detail": "The token is unknown."}), "correct that: .* answered 401: The"),
        (Answer(None), "they are sent once it answers: .* did not answer"),
    ],
)
def test_a_server_that_is_unreachable_or_refuses_is_logged_at_once(
    receiver: Receiver,
    tmp_path: Path,
    capfd: pytest.CaptureFixture[str],
    answer: Answer,
    words: str,
) -> None:
    receiver.answers = [answer] * 3
    periodic(receiver, tmp_path, retry=RetryPolicy(give_up_after_s=0.1, first_wait_s=0.05))
    said = capfd.readouterr().err
    assert re.search(rf"paceline: recordings wait in {re.escape(str(tmp_path))}, {words}", said)


@pytest.mark.parametrize(("dp", "level", "said"), [(2, "p2p", 1), (2, "compute", 0), (1, "p2p", 0)])
def test_a_log_line_advises_data_parallel_ranks_without_collectives(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], dp: int, level: str, said: int
) -> None:
    retry = RetryPolicy(give_up_after_s=0.1, first_wait_s=0.05)
    job = Job("http://127.0.0.1:9", tmp_path, layout=Layout(dp=dp), level=level, retry=retry)
    job.monitor.record(2, at=2)
    job.train(6)
    job.monitor.wait(10.0)
    job.monitor.close(0.0)
    told = capfd.readouterr().err
    assert told.count("paceline: no data-parallel collective was seen in steps 2 to 3") == said
