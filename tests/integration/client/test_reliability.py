"""The outcome of a session, and of the training, after failures of other parts."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from paceline_client.environment import machine_of
from tests.integration.client.conftest import NOWHERE, Jobs, Train, Trained, environment
from tests.unit.client.conftest import Answer, Receiver, receiver

if TYPE_CHECKING:
    from tests.integration.api.conftest import Install, Installation

__all__ = ["receiver"]

pytestmark = pytest.mark.slow

STEPS = [2, 3, 4, 5]


def sessions(installation: Installation) -> list[dict[str, Any]]:
    installation.absorb_all()
    found: list[dict[str, Any]] = installation.client.get("/api/v1/sessions").json()["sessions"]
    return found


def send(trained: Trained, installation: Installation, recorded_for: str) -> str:
    """Send the spool to a server, as a user would."""
    sent = subprocess.run(  # noqa: S603 - our own module
        [
            *(sys.executable, "-m", "paceline_client", "send", installation.url),
            *("--spool", str(trained.spool.directory), "--recorded-for", recorded_for),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        check=True,
    )
    return sent.stdout


def steps_of(lines: list[dict[str, Any]]) -> list[int]:
    return sorted({line["step"] for line in lines[1:]})


def test_a_session_of_a_server_that_is_away_waits_and_is_sent_later(
    train: Train, installation: Installation
) -> None:
    trained = train("--kind", "ddp", "--ranks", "2", "--url", NOWHERE)

    assert trained.code == 0, trained.said
    shares = trained.shares()
    assert sorted(shares) == ["rank-0", "rank-1"]
    assert [steps_of(lines) for _, lines in shares.values()] == [STEPS, STEPS]
    assert len({address.run_id for address, _ in shares.values()}) == 1
    assert send(trained, installation, NOWHERE).startswith("2 sent, 0 left")
    assert trained.spool.waiting() == []
    (session,) = sessions(installation)
    assert (session["job"], session["attempt"], session["session"]) == ("job", 1, 3)
    assert session["state"] == "queued", "sealed, since every rank has sent its share"


def test_a_server_that_is_killed_midway_loses_nothing(
    jobs: Jobs, tmp_path: Path, install: Install
) -> None:
    directory = tmp_path / "job"
    with install() as first:
        jobs.start(
            directory, "--kind", "ddp", "--ranks", "2", "--url", first.url, "--pause-s", "0.3"
        )
        at = directory / "at-0"
        while not (at.exists() and at.read_text() == "3"):
            time.sleep(0.02)
    trained = jobs.wait(directory)
    assert trained.code == 0, trained.said
    assert sorted(trained.shares()) == ["rank-0", "rank-1"]
    with install() as second:
        send(trained, second, first.url)
        assert [session["state"] for session in sessions(second)] == ["queued"]


def test_one_rank_of_a_host_sends_for_all(train: Train, installation: Installation) -> None:
    trained = train(
        *("--kind", "ddp", "--ranks", "3", "--relay", "node", "--url", installation.url)
    )
    assert trained.code == 0, trained.said
    assert trained.spool.waiting() == []
    (session,) = sessions(installation)
    assert session["state"] == "queued"
    assert [len(trained.told(f"rank-{rank}")["outcomes"]) for rank in range(3)] == [1, 1, 1]
    # Each rank has sent its machine.
    meta = installation.client.get(f"/api/v1/sessions/{session['id']}").json()["meta"]
    here = machine_of()
    assert meta["hosts"] == dict.fromkeys("012", here.node)
    assert ("guessed_hosts" in meta) == here.guessed


@pytest.mark.parametrize("fault", ["fork", "spawn"])
def test_a_child_of_a_rank_sends_nothing(train: Train, fault: str) -> None:
    trained = train("--url", NOWHERE, "--fault", fault)

    assert trained.code == 0, trained.said
    ((_, lines),) = trained.shares().values()
    assert steps_of(lines) == STEPS
    assert len(trained.told()["losses"]) == 8


def test_an_address_that_no_name_server_knows_costs_the_training_nothing(train: Train) -> None:
    trained = train("--url", "http://paceline.invalid:8765")

    assert trained.code == 0, trained.said
    (outcome,) = trained.told()["outcomes"]
    assert "did not answer" in outcome["error"]
    assert list(trained.shares()) == ["rank-0"]


@pytest.mark.parametrize(
    ("status", "waits"),
    [(401, True), (409, False), (413, False), (429, True), (500, True), (503, True)],
)
def test_whatever_a_server_answers_costs_the_training_nothing(
    train: Train, receiver: Receiver, status: int, *, waits: bool
) -> None:
    """Bodies that may be accepted later stay in the spool; others are dropped with a warning."""
    receiver.answers = [Answer(status=status, document={"detail": "no", "code": "x"})] * 1000
    trained = train("--twice", "--url", receiver.url)

    assert trained.code == 0, trained.said
    losses = [trained.told(f"plain-{way}-rank-0")["losses"] for way in ("without", "with")]
    assert losses[0] == losses[1]
    (outcome,) = trained.told("plain-with-rank-0")["outcomes"]
    assert outcome["delivery"] is None
    assert outcome["error"]
    assert list(trained.shares()) == (["rank-0"] if waits else [])


@pytest.mark.parametrize("away", [False, True])
def test_a_full_disk_costs_the_training_nothing(
    train: Train, installation: Installation, *, away: bool
) -> None:
    trained = train("--url", NOWHERE if away else installation.url, "--fault", "disk full")

    assert trained.code == 0, trained.said
    (outcome,) = trained.told()["outcomes"]
    assert trained.spool.waiting() == []
    assert outcome["spooled"] is None
    assert (outcome["delivery"] is None) == away
    assert len(sessions(installation)) == (0 if away else 1)


def test_the_share_of_a_rank_that_was_killed_is_missing_and_the_session_says_so(
    train: Train, installation: Installation
) -> None:
    trained = train("--kind", "ddp", "--ranks", "2", "--url", installation.url, "--fault", "kill")

    assert trained.code != 0
    (session,) = sessions(installation)
    assert session["state"] == "open"
    sealed = installation.client.post("/api/v1/jobs/job/attempts/1/sessions/3/seal")
    assert sealed.status_code == 202
    installation.analyze_all()
    found = installation.client.get(f"/api/v1/sessions/{session['id']}").json()
    # A straggler is found by comparison, and there is no other rank to compare with.
    assert found["state"] == "no_verdict"
    assert "1 of 2 workers sent nothing: (DP rank, stage) (1, 0)" in found["reason"]
    report = installation.client.get(f"/api/v1/sessions/{session['id']}/report").json()
    (missing,) = report["coverage"]["missing"]
    assert missing["rank"] == 1
    assert [one["rank"] for one in report["breakdown"]["ranks"]] == [0]
    page = installation.client.get(f"/sessions/{session['id']}").text
    assert "(DP rank, stage) (1, 0)" in page


def test_a_clock_that_is_set_moves_no_operation_and_is_reported(train: Train) -> None:
    trained = train("--url", NOWHERE, "--fault", "clock", "--record", "2:4")

    assert trained.code == 0, trained.said
    ((_, lines),) = trained.shares().values()
    starts = [line["start_ns"] for line in lines[1:]]
    assert max(starts) - min(starts) < 60 * 10**9
    assert lines[0]["meta"]["clocks"]["rank-0"]["clock_set_ns"] > 3599 * 10**9


def test_a_process_that_exits_inside_a_step_sends_the_steps_before(train: Train) -> None:
    trained = train("--url", NOWHERE, "--fault", "exit")

    assert trained.code == 0, trained.said
    ((_, lines),) = trained.shares().values()
    assert steps_of(lines) == [2, 3]


@pytest.mark.parametrize("fault", ["leave", "leave broken"])
def test_a_rank_ends_well_though_the_store_is_gone_meanwhile(train: Train, fault: str) -> None:
    trained = train("--kind", "ddp", "--ranks", "2", "--url", NOWHERE, "--fault", fault)

    # A thread inside the store would end the process with SIGABRT (before Python 3.14).
    assert trained.code == 0, trained.said
    assert "terminate called" not in trained.said
    assert len(trained.shares()) == 2 - (fault == "leave broken")


def test_work_under_way_ends_with_its_process_and_does_not_abort_it(
    train: Train,
) -> None:
    trained = train("--kind", "ddp", "--ranks", "2", "--url", NOWHERE, "--fault", "leave pending")

    # A thread that returns from gloo too late would end the process with SIGABRT.
    assert trained.code == 0, trained.said
    assert "terminate called" not in trained.said
    for _, lines in trained.shares().values():
        assert steps_of(lines) == STEPS


def test_three_steps_are_judged_without_an_interval(
    train: Train, installation: Installation
) -> None:
    words = ("--kind", "ddp", "--ranks", "2", "--record", "2:3", "--pause-s", "0.05")
    trained = train(*words, "--url", installation.url)
    assert trained.code == 0, trained.said
    installation.analyze_all()
    (session,) = sessions(installation)
    assert session["state"] in {"analyzed", "no_verdict"}, session["reason"]
    report = installation.client.get(f"/api/v1/sessions/{session['id']}/report").json()
    assert report["steps"]["analyzed"] == [2, 3, 4]
    assert report["headline"]["ci95"] is None
    assert "these are 3" in report["headline"]["ci95_reason"]
    assert installation.client.get(f"/sessions/{session['id']}").status_code == 200
