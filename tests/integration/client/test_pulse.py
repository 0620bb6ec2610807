"""The pulse of real jobs: each rank's own computing, with any sender, with and without a server."""

from __future__ import annotations

import subprocess
from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.hangs.findings import Culprit
from app.analysis.hangs.verdict import judge_hang
from app.hangs.files import job_of
from app.pulse.advance import advance_pulses
from app.pulse.body import read_pulse
from tests.integration.client.conftest import NOWHERE, Jobs, Train, environment
from tests.real_jobs.launching import torch_python
from tests.unit.client.conftest import Answer, Receiver, receiver

if TYPE_CHECKING:
    from app.analysis.pulse.columns import Pulses
    from app.hangs.files import HangFile
    from tests.integration.api.conftest import Installation

__all__ = ["receiver"]

# Options for a job without sessions, and with a body every 0.2 s.
ALONE = ("--no-session", "--pulse-s", "0.2")
SLOW_S = 0.03
STEPS = 12


@pytest.fixture(autouse=True)
def numbered(receiver: Receiver) -> None:
    receiver.numbered = Answer(status=201, document={"attempt": 2})


def sent(receiver: Receiver) -> list[Pulses]:
    """Return the received bodies."""
    return [read_pulse(request.body, 2).rows for request in receiver.pulses]


def by_rank(receiver: Receiver, name: str) -> dict[int, list[int]]:
    """Return the values of a measure, by rank and step."""
    values: dict[int, list[int]] = {}
    for rows in sent(receiver):
        for rank, value, phase in zip(rows.rank, getattr(rows, name), rows.phase, strict=True):
            if phase < 0:
                values.setdefault(int(rank), []).append(int(value))
    return values


@pytest.mark.parametrize("kind", ["ddp", "fsdp2", "pipelining"])
def test_only_the_rank_that_is_slow_computes_longer(
    train: Train, receiver: Receiver, kind: str
) -> None:
    trained = train(
        *("--kind", kind, "--ranks", "2", "--steps", str(STEPS), "--url", receiver.url),
        *("--slow", "1", "--slow-s", str(SLOW_S), *ALONE),
    )

    assert trained.code == 0, trained.said
    steps = by_rank(receiver, "step")
    assert {rank: sorted(set(of)) for rank, of in steps.items()} == {
        rank: list(range(STEPS)) for rank in range(2)
    }
    computing = {
        rank: float(np.median(values)) for rank, values in by_rank(receiver, "compute_ns").items()
    }
    # The rank slept in two or four forward passes, and the other rank waited as long.
    assert computing[1] > 2 * SLOW_S * 1e9
    assert computing[0] < computing[1] / 2
    waiting = {
        rank: float(np.median(values)) for rank, values in by_rank(receiver, "wait_ns").items()
    }
    assert waiting[0] > SLOW_S * 1e9
    assert any("finished" in rows.phases for rows in sent(receiver))


def test_ranks_send_their_current_operation_on_request(train: Train, receiver: Receiver) -> None:
    """One of two ranks sleeps so long in its forward passes that the job seems to hang."""
    receiver.pulse = Answer(document={"record": None, "pulse_s": 5, "files": True})
    trained = train(
        *("--kind", "ddp", "--ranks", "2", "--steps", "2", "--url", receiver.url),
        *("--slow", "1", "--slow-s", "4", *ALONE),
    )

    assert trained.code == 0, trained.said
    kept: dict[str, HangFile] = {}
    named: list[Culprit] = []
    for request in receiver.pulses:
        body = read_pulse(request.body, 2)
        assert not body.counts
        kept |= {one.name: one for one in body.files}
        if body.files:
            named += judge_hang(job_of(kept.values())).culprits
    assert kept.keys() == {f"{kind}_{rank}.json" for kind in ("stack", "_dump") for rank in (0, 1)}
    (line,) = {one.stack[0].file for one in named if one.rank == 1}
    assert line.endswith("training.py")
    # The stacks of both ranks are of different times: if a step ended in between, they disagree.
    told = Counter(one.rank for one in named)
    assert told[1] > 2 * told[0]


def test_a_rank_takes_over_when_the_one_that_sends_is_killed(
    jobs: Jobs, tmp_path: Path, receiver: Receiver
) -> None:
    """Rank 0 of two ranks without collectives is killed; rank 1 continues, and sends its rows."""
    jobs.start(
        tmp_path / "job",
        *("--kind", "plain", "--ranks", "2", "--steps", "60", "--url", receiver.url),
        *(
            "--pause-s",
            "0.1",
            "--fault",
            "kill first",
            "--fault-at",
            "20",
            "--no-session",
            "--pulse-s",
            "0.2",
        ),
    )
    trained = jobs.wait(tmp_path / "job")

    assert trained.code == 1, trained.said
    steps = by_rank(receiver, "step")
    assert max(steps[1]) == 59
    # Only the unsent rows of the killed rank are lost: its own, and those passed to it.
    lost = set(range(60)) - set(steps[1])
    assert len(steps[1]) == 60 - len(lost)
    assert len(lost) < 10
    assert all(abs(step - 20) < 10 for step in lost)
    assert max(steps[0]) <= 20
    assert trained.told("rank-1")["pulse"]["sent"] > 0


@pytest.mark.parametrize(
    ("method", "end"), [("fork", "return"), ("plain-fork", "exit"), ("spawn", "fail")]
)
def test_ranks_that_multiprocessing_starts_send_their_last_rows(
    tmp_path: Path, receiver: Receiver, method: str, end: str
) -> None:
    script = Path(__file__).with_name("spawning.py")
    done = subprocess.run(  # noqa: S603 - our own script
        [torch_python(), str(script), method, receiver.url, str(tmp_path / "store"), end],
        env=environment() | {"PACELINE_SPOOL": str(tmp_path / "spool"), "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
        timeout=100,
    )

    failed = end == "fail"
    assert (done.returncode != 0) is failed, done.stderr
    assert by_rank(receiver, "step")[0] == list(range(STEPS))
    finished = [request.path for request in receiver.requests if request.path.endswith("/finish")]
    assert len(finished) == (0 if failed else 1)
    if not failed:
        # Rank 1 is ended by its parent where rank 0 fails.
        assert by_rank(receiver, "step")[1] == list(range(STEPS))


def test_a_server_that_is_away_costs_rows_and_nothing_else(train: Train) -> None:
    trained = train(
        *(
            "--kind",
            "ddp",
            "--ranks",
            "2",
            "--steps",
            "6",
            "--url",
            NOWHERE,
            "--no-session",
            "--pulse-s",
            "0.2",
        )
    )

    assert trained.code == 0, trained.said
    for rank in range(2):
        pulse = trained.told(f"rank-{rank}")["pulse"]
        assert pulse["rows"] == 6
        assert pulse["sent"] == 0
    assert sum(trained.told(f"rank-{rank}")["pulse"]["dropped"] for rank in range(2)) > 0


def test_a_server_takes_all_of_a_job(train: Train, installation: Installation) -> None:
    trained = train(
        *("--kind", "ddp", "--ranks", "2", "--steps", "9", "--url", installation.url),
        *("--pause-s", "0.05", *ALONE),
    )

    assert trained.code == 0, trained.said
    told = [trained.told(f"rank-{rank}")["pulse"] for rank in range(2)]
    assert [pulse["rows"] for pulse in told] == [9, 9]
    assert sum(pulse["sent"] for pulse in told) == 18
    assert sum(pulse["dropped"] for pulse in told) == 0
    while advance_pulses(installation.container, timedelta(0)):
        pass
    found = installation.client.get("/api/v1/jobs/job/pulse/notices").json()
    assert found == {"notices": [], "counts": {}, "clocks": {}}
