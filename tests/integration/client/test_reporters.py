"""A job's status in runs of W&B, MLflow and TensorBoard, written offline and read back."""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING

import pytest

from paceline_client.exchange import DeliveryError
from paceline_client.reporters import REPORTERS, JobStatus, Reporting, job_status, report
from tests.integration.client.conftest import NOWHERE
from tests.support.alerting import Alerting
from tests.support.extras import of_real_jobs
from tests.support.waiting import wait_for

if TYPE_CHECKING:
    from pathlib import Path

    from tests.integration.api.conftest import Installation

STANDING = JobStatus(
    session=101,
    slowdown=1.38,
    gpu_hours_lost=2.5,
    gpu_hours_lost_per_hour=140.0,
    firing=1,
    incident="firing",
    sentence="Slow: node-7 computes 1.8 times as long as its peers",
)
NUMBERS = {
    "paceline/slowdown": 1.38,
    "paceline/gpu_hours_lost": 2.5,
    "paceline/gpu_hours_lost_per_hour": 140.0,
    "paceline/incidents_firing": 1.0,
}


class Kept:
    """A reporter that stores each status."""

    def __init__(self) -> None:
        self.written: list[JobStatus] = []
        self.closed = threading.Event()
        self.fails = False

    def write(self, standing: JobStatus) -> None:
        if self.fails:
            raise RuntimeError("the run is over")
        self.written.append(standing)

    def close(self) -> None:
        self.closed.set()


def test_a_run_gets_the_verdict_and_the_incident(installation: Installation) -> None:
    installation.post()
    assert job_status(installation.url, "job") is None
    installation.analyze_all()
    Alerting(installation.container).slow("job")
    kept = Kept()
    reporting = Reporting(installation.url, "job", kept)
    reporting.start()
    wait_for(lambda: bool(kept.written), "what is written")
    reporting.close()
    assert kept.closed.wait(60)
    told = kept.written[-1]
    sessions = installation.client.get("/api/v1/sessions?job=job").json()["sessions"]
    session = next(one for one in sessions if one["headline"])
    assert told.session == session["session"]
    assert told.slowdown == session["headline"]["slowdown"]
    assert told.sentence == session["headline"]["sentence"]
    assert (told.firing, told.incident) == (1, "firing")


def test_nothing_of_a_reporter_reaches_the_training(
    installation: Installation, caplog: pytest.LogCaptureFixture
) -> None:
    installation.post()
    installation.analyze_all()
    kept = Kept()
    kept.fails = True
    with caplog.at_level(logging.WARNING, "paceline_client"):
        reporting = Reporting(installation.url, "job", kept, every_s=1.0)
        reporting.start()
        wait_for(lambda: bool(caplog.records), "warning")
        kept.fails = False
        wait_for(lambda: bool(kept.written), "what is written when it takes again")
        reporting.close()
        assert len(caplog.records) == 1
        caplog.clear()
        # An unknown kind, a missing run, and an unavailable server.
        report(NOWHERE, "job", "clearml").close()
        report(NOWHERE, "job", "tensorboard").close()
        report("ftp://nowhere", "job", "tensorboard", "there").close()
        assert len(caplog.records) == 3
        with pytest.raises(DeliveryError):
            job_status(NOWHERE, "job")


def test_a_training_that_ends_does_not_wait_for_a_server() -> None:
    held = threading.Event()

    class Hanging(Kept):
        def write(self, _standing: JobStatus) -> None:
            held.wait()

    reporting = Reporting(NOWHERE, "job", Hanging())
    reporting.start()
    since_s = time.monotonic()
    reporting.close(wait_s=0.1)
    held.set()
    # Far less than the sum of time limits of requests, ten seconds each.
    assert time.monotonic() - since_s < 60


def test_weights_and_biases_offline(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # The import creates temporary folders, which are only deleted when a process exits normally.
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    wandb = of_real_jobs("wandb")
    for name in ("WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    run = wandb.init(project="llm", mode="offline", dir=str(tmp_path), settings={"silent": True})
    reporter = REPORTERS["wandb"](None)
    run.log({"loss": 3.0})
    reporter.write(STANDING)
    run.log({"loss": 2.0})
    reporter.close()
    # The summary that W&B's service shows.
    assert {name: run.summary[name] for name in NUMBERS} == NUMBERS
    assert (run.summary["paceline/session"], run.summary["paceline/incident"]) == (101, "firing")
    # The training's own steps are 0 and 1, as without a reporter.
    assert (run.summary["_step"], run.summary["loss"]) == (1, 2.0)
    run.finish()
    [path] = tmp_path.glob("wandb/offline-run-*/run-*.wandb")
    # W&B's background service may write after the run has ended.
    wait_for(
        lambda: all(name.encode() in path.read_bytes() for name in NUMBERS), "the run's own file"
    )


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # of MLflow's own use of SQLAlchemy
def test_mlflow_in_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MLFLOW_TRACKING_URI", f"sqlite:///{tmp_path}/runs.db")
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow = of_real_jobs("mlflow")
    client = mlflow.MlflowClient()
    experiment = client.create_experiment("llm", artifact_location=str(tmp_path / "artifacts"))
    run = client.create_run(experiment)
    reporter = REPORTERS["mlflow"](run.info.run_id)
    reporter.write(STANDING)
    reporter.close()
    read = client.get_run(run.info.run_id)
    assert read.data.metrics == NUMBERS
    assert client.get_metric_history(run.info.run_id, "paceline/slowdown")[0].step == 101
    assert read.data.tags["paceline.incident"] == "firing"
    assert read.info.status == "RUNNING"


def test_tensorboard_reads_its_events(tmp_path: Path) -> None:
    of_real_jobs("torch")
    accumulator = of_real_jobs("tensorboard.backend.event_processing.event_accumulator")
    reporter = REPORTERS["tensorboard"](tmp_path)
    reporter.write(STANDING)
    reporter.close()
    events = accumulator.EventAccumulator(str(tmp_path))
    events.Reload()
    assert {name: events.Scalars(name)[0].value for name in events.Tags()["scalars"]} == (
        pytest.approx(NUMBERS)
    )
    assert events.Scalars("paceline/slowdown")[0].step == 101
    [text] = events.Tensors("paceline/incident/text_summary")
    assert text.tensor_proto.string_val == [b"firing"]
