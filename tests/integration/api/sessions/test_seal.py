"""The conditions under which a session in chunks is sealed."""

from __future__ import annotations

import concurrent.futures
import json
from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from app.analysis.trace.encode import to_parquet
from app.installation.sweep import SweepResult, sweep
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper
from app.sessions.models.tables import Intake
from tests import factories
from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, seal

if TYPE_CHECKING:
    from tests.integration.api.conftest import Installation


def test_sealing_queues_the_analysis_once(installation: Installation) -> None:
    for rank in chunks.RANKS:
        put(installation, rank)
    first, again = seal(installation), seal(installation)
    assert (first.status_code, again.status_code) == (202, 200)
    assert first.json()["state"] == again.json()["state"] == "queued"
    assert installation.rows()["task_run"] == 1
    installation.analyze_all()
    assert seal(installation).json()["state"] == "analyzed"
    assert installation.rows()["task_run"] == 1


def test_sealing_at_the_same_time_queues_once(installation: Installation) -> None:
    put(installation)
    with concurrent.futures.ThreadPoolExecutor(8) as askers:
        tasks = [askers.submit(seal, installation) for _ in range(8)]
        answers = [task.result().status_code for task in tasks]
    assert sorted(answers) == [200] * 7 + [202]
    assert installation.rows()["task_run"] == 1


def test_a_session_that_is_not_there_cannot_be_sealed(installation: Installation) -> None:
    assert seal(installation).json()["code"] == "not_found"


def test_a_sealed_session_knows_its_chunks_and_takes_no_others(
    installation: Installation,
) -> None:
    for rank in chunks.RANKS:
        put(installation, rank)
    seal(installation)
    for _ in range(2):
        assert put(installation, "0").status_code == 200
        late = put(installation, "0", 1, chunks.rank_body(1))
        assert (late.status_code, late.json()["code"]) == (409, "session.sealed")
        # The bytes of merged chunks are deleted, but not their digests.
        installation.analyze_all()


def test_the_last_final_chunk_seals(installation: Installation) -> None:
    parts = chunks.parquet_pieces(bodies.trace())
    # The last chunk of each producer arrives first.
    for producer, number, body in reversed(parts):
        answer = put(installation, producer, number, body, final=number == 2)
        assert answer.status_code == 202
        installation.absorb_all()
        expected = "queued" if (producer, number) == ("rank-0", 0) else "open"
        assert chunks.detail(installation, answer)["state"] == expected
    assert installation.rows()["task_run"] == 1


def test_a_host_that_relays_a_cell_each_is_waited_for_by_its_cells(
    installation: Installation,
) -> None:
    assert put(installation, "0", final=True).json()["state"] == "open"
    rest = factories.select(bodies.trace(), bodies.trace().rank != 0)
    answer = put(installation, "relay", body=to_parquet(rest), final=True)
    installation.absorb_all()
    assert chunks.detail(installation, answer)["state"] == "queued"


def test_producers_that_the_metadata_names_are_waited_for(installation: Installation) -> None:
    meta = f"{bodies.META}producers: [a, b]\n"

    def send(producer: str, body: bytes) -> str:
        answer = installation.client.put(
            chunks.url(1, producer, 0),
            files={"meta": (None, meta), "trace": ("t", body, bodies.PARQUET)},
            params={"final": "true"},
        )
        assert answer.status_code == 202, answer.text
        installation.absorb_all()
        state: str = chunks.detail(installation, answer)["state"]
        return state

    assert send("a", bodies.parquet()) == "open"
    assert send("other", chunks.rank_body(1)) == "open"
    assert send("b", chunks.rank_body(2)) == "queued"


@pytest.mark.parametrize(
    ("gap_s", "silent_s", "sealed"),
    [
        (0, 100, 0),
        (0, 121, 1),
        (60, 280, 0),
        (60, 301, 1),
        # After a pause of twelve hours, the limit is a day and not five pauses.
        (43_200, 86_300, 0),
        (43_200, 86_401, 1),
    ],
)
def test_silence_seals(
    installation: Installation, gap_s: float, silent_s: float, sealed: int
) -> None:
    answer = put(installation)
    container = installation.container
    with container.uow() as tx:
        tx.session.execute(
            update(Intake).values(
                last_chunk_at=tx.now - timedelta(seconds=silent_s), longest_gap_s=gap_s
            )
        )
    assert sweep(container) == SweepResult(sealed=sealed)
    assert chunks.detail(installation, answer)["state"] == ("queued" if sealed else "open")
    assert sweep(container) == SweepResult()
    assert installation.rows()["task_run"] == sealed


def paused(installation: Installation, silent_s: float) -> int:
    """Return the number of sessions that are sealed after a silence."""
    with installation.container.uow() as tx:
        at = tx.now - timedelta(seconds=silent_s)
        tx.session.execute(update(Intake).values(last_chunk_at=at, longest_gap_s=0.0))
    return sweep(installation.container).sealed


def put_with_pause(installation: Installation, number: int) -> None:
    meta = bodies.SIZES | {"pause_s": 600}
    rows = [
        {"rank": 0, "dp": 0, "pp": 0, "step": number, "op": "optimizer", "start_ns": 1, "dur_ns": 1}
    ]
    lines = [{"schema": "paceline.trace/1", "meta": meta}, *rows]
    body = "".join(json.dumps(line) + "\n" for line in lines).encode()
    answer = installation.client.put(chunks.url(1, "0", number), content=body)
    assert answer.status_code == 202


def test_a_job_may_pause_within_a_session_for_as_long_as_it_tells(
    installation: Installation,
) -> None:
    put_with_pause(installation, 0)
    assert paused(installation, 590) == 0
    assert paused(installation, 610) == 1


def test_once_a_producer_has_ended_the_others_are_not_waited_for_as_long(
    installation: Installation,
) -> None:
    put_with_pause(installation, 0)
    put(installation, "1", final=True)
    # A late chunk.
    put_with_pause(installation, 1)
    installation.absorb_all()
    assert paused(installation, 100) == 0
    assert paused(installation, 125) == 1


def test_a_session_with_waiting_chunks_is_not_sealed_for_silence(
    installation: Installation,
) -> None:
    put(installation, "0")
    put(installation, "1")
    assert paused(installation, 121) == 0
    installation.absorb_all()
    assert paused(installation, 121) == 1


def test_chunks_that_wait_at_sealing_are_in_the_report(installation: Installation) -> None:
    first = put(installation)
    for rank in chunks.RANKS[1:]:
        put(installation, rank)
    assert seal(installation).status_code == 202
    late = put(installation, "0", 1, chunks.rank_body(1))
    assert (late.status_code, late.json()["code"]) == (409, "session.sealed")
    (run,) = installation.queued()
    assert execute(installation.container, LeaseKeeper(installation.container), run)
    found = chunks.detail(installation, first)
    assert (found["state"], found["intake"]["chunks"]) == ("analyzed", len(chunks.RANKS))


def test_gaps_between_chunks_are_measured(installation: Installation) -> None:
    put(installation, "0")
    with installation.container.uow() as tx:
        tx.session.execute(update(Intake).values(last_chunk_at=tx.now - timedelta(seconds=50)))
    put(installation, "1")
    put(installation, "2")
    installation.absorb_all()
    with installation.container.uow() as tx:
        longest = tx.session.execute(select(Intake.longest_gap_s)).scalar_one()
    assert longest == pytest.approx(50, abs=5)
