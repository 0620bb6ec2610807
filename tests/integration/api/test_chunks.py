"""Sending a session in chunks: what is taken, what is refused, and when it is sealed."""

from __future__ import annotations

import concurrent.futures
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from sqlalchemy import select, update

from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Trace
from app.db.models.chunks import Intake
from app.services.installation.sweep import SweepResult, sweep
from tests import factories
from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, report, seal

if TYPE_CHECKING:
    from collections.abc import Callable

    import httpx

    from tests.integration.api.conftest import Install, Installation

RANKS = [str(rank) for rank in range(6)]


def detail(installation: Installation, answer: httpx.Response) -> dict[str, Any]:
    found = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}")
    assert found.status_code == 200
    document: dict[str, Any] = found.json()
    return document


def test_a_chunk_is_stored_before_the_answer_and_its_session_is_open(
    installation: Installation,
) -> None:
    answer = put(installation, "0")
    assert answer.status_code == 202, answer.text
    body = answer.json()
    assert (body["state"], body["job"], body["number"]) == ("open", "job", 1)
    assert answer.headers["location"] == f"/api/v1/sessions/{body['session']}"
    rows = installation.rows()
    assert (rows["session"], rows["task_run"], rows["blob_part"]) == (1, 0, 1)
    found = detail(installation, answer)
    rank_0 = bodies.trace().rank == 0
    assert found["state"] == "open"
    assert found["operations"] == int(rank_0.sum())
    assert installation.metric("paceline_ingest_chunks_total", outcome="new") == 1


def test_the_same_bytes_again_are_the_same_chunk(installation: Installation) -> None:
    first = put(installation)
    before = installation.rows()
    again = put(installation)
    assert (first.status_code, again.status_code) == (202, 200)
    assert again.json() == first.json()
    assert installation.rows() == before


def test_other_bytes_under_the_same_path_are_refused_and_counted(
    installation: Installation,
) -> None:
    first = put(installation, "0")
    other = chunks.rank_body(1)
    refused = put(installation, "0", body=other)
    assert (refused.status_code, refused.json()["code"]) == (409, "chunk.differs")
    found = detail(installation, first)
    assert found["operations"] == int((bodies.trace().rank == 0).sum())
    assert found["intake"]["refused_chunks"] == 1
    assert found["intake"]["refused_bytes"] == len(other)


def test_a_refused_chunk_spoils_nothing(installation: Installation) -> None:
    first = put(installation, "0")
    before = installation.rows()
    bad = bodies.changed("dur_ns", 7, -1)
    refused = put(installation, "1", body=bad)
    assert (refused.status_code, refused.json()["code"]) == (422, "trace.negative_duration")
    assert refused.json()["faults"][0]["row"] == 7
    assert installation.rows() == before
    assert detail(installation, first)["intake"]["refused_bytes"] == len(bad)
    for rank in RANKS[1:]:
        assert put(installation, rank).status_code == 202
    assert seal(installation).status_code == 202
    installation.analyze_all()
    assert detail(installation, first)["state"] == "analyzed"


def test_a_refused_first_chunk_makes_no_session(installation: Installation) -> None:
    assert put(installation, body=b"junk").json()["code"] == "trace.unknown_format"
    assert put(installation, body=b"").json()["code"] == "trace.empty"
    assert installation.rows()["session"] == 0


@pytest.mark.parametrize(
    ("params", "status", "code"),
    [
        ({"pp": 3, "world": 9}, 422, "metadata.conflict"),
        ({"trial_name": "other"}, 422, "metadata.conflict"),
        ({"world": 7}, 422, "metadata.world_mismatch"),
    ],
)
def test_metadata_that_contradicts_the_session_is_refused(
    installation: Installation, params: dict[str, Any], status: int, code: str
) -> None:
    put(installation, "0", trial_name="one")
    refused = put(installation, "1", **params)
    assert (refused.status_code, refused.json()["code"]) == (status, code)
    assert installation.rows()["blob_part"] == 1


def test_times_of_two_kinds_are_refused(installation: Installation) -> None:
    put(installation, "0")
    refused = put(installation, "1", body=bodies.published(*bodies.published_times()))
    assert (refused.status_code, refused.json()["code"]) == (409, "session.formats_mixed")


def test_a_session_that_came_whole_takes_no_chunks(installation: Installation) -> None:
    number = installation.post().json()["number"]
    refused = put(installation, session=number)
    assert (refused.status_code, refused.json()["code"]) == (409, "session.whole")
    refused = seal(installation, number)
    assert (refused.status_code, refused.json()["code"]) == (409, "session.whole")
    put(installation, session=number + 1)
    assert installation.post(job="job", params=bodies.SIZES | {"run_id": "b"}).json()["number"] == 3


@pytest.mark.parametrize(
    ("path", "status", "code"),
    [
        ("attempts/1/sessions/1/chunks/%20a/0", 422, "producer.invalid_name"),
        ("attempts/1/sessions/1/chunks/a%00/0", 422, "producer.invalid_name"),
        ("attempts/0/sessions/1/chunks/a/0", 422, "request.invalid"),
        ("attempts/1/sessions/2147483648/chunks/a/0", 422, "request.invalid"),
        ("attempts/1/sessions/1/chunks/a/-1", 422, "request.invalid"),
    ],
)
def test_paths_that_cannot_be_are_refused(
    client: httpx.Client, path: str, status: int, code: str
) -> None:
    answer = client.put(f"/api/v1/jobs/job/{path}", content=bodies.parquet(), params=bodies.SIZES)
    assert (answer.status_code, answer.json()["code"]) == (status, code)


def test_a_session_over_the_limit_of_rows_takes_no_more(
    install: Install,
) -> None:
    rows = int((bodies.trace().rank == 0).sum())
    with install(max_rows=rows) as installation:
        assert put(installation, "0").status_code == 202
        refused = put(installation, "1")
        assert (refused.status_code, refused.json()["code"]) == (413, "body.too_many_rows")


def test_producers_send_at_the_same_time(installation: Installation) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as senders:
        tasks = [senders.submit(put, installation, rank) for rank in RANKS for _ in range(2)]
        answers = [task.result() for task in tasks]
    assert sorted(answer.status_code for answer in answers) == [200] * 6 + [202] * 6
    assert len({answer.json()["session"] for answer in answers}) == 1
    rows = installation.rows()
    assert (rows["job"], rows["session"], rows["blob_part"]) == (1, 1, 6)
    assert detail(installation, answers[0])["operations"] == len(bodies.trace())


def test_sealing_queues_the_analysis_once(installation: Installation) -> None:
    for rank in RANKS:
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
    for rank in RANKS:
        put(installation, rank)
    seal(installation)
    for _ in range(2):
        assert put(installation, "0").status_code == 200
        late = put(installation, "0", 1, chunks.rank_body(1))
        assert (late.status_code, late.json()["code"]) == (409, "session.sealed")
        # the bytes of merged chunks are gone, their digests are not
        installation.analyze_all()


def test_the_last_final_chunk_seals(installation: Installation) -> None:
    parts = chunks.parquet_pieces(bodies.trace())
    # each producer's last chunk comes first
    for producer, number, body in reversed(parts):
        answer = put(installation, producer, number, body, final=number == 2)
        expected = "queued" if (producer, number) == ("rank-0", 0) else "open"
        assert (answer.status_code, answer.json()["state"]) == (202, expected)
    assert installation.rows()["task_run"] == 1


def test_a_host_that_relays_a_cell_each_is_waited_for_by_its_cells(
    installation: Installation,
) -> None:
    assert put(installation, "0", final=True).json()["state"] == "open"
    rest = factories.select(bodies.trace(), bodies.trace().rank != 0)
    assert put(installation, "relay", body=to_parquet(rest), final=True).json()["state"] == "queued"


def test_producers_that_the_metadata_names_are_waited_for(installation: Installation) -> None:
    meta = f"{bodies.META}producers: [a, b]\n"

    def send(producer: str, body: bytes) -> str:
        answer = installation.client.put(
            chunks.url(1, producer, 0),
            files={"meta": (None, meta), "trace": ("t", body, bodies.PARQUET)},
            params={"final": "true"},
        )
        assert answer.status_code == 202, answer.text
        state: str = answer.json()["state"]
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
        # Twelve hours between two chunks: a day, not sixty hours.
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
    assert detail(installation, answer)["state"] == ("queued" if sealed else "open")
    assert sweep(container) == SweepResult()
    assert installation.rows()["task_run"] == sealed


def test_gaps_between_chunks_are_measured(installation: Installation) -> None:
    put(installation, "0")
    with installation.container.uow() as tx:
        tx.session.execute(update(Intake).values(last_chunk_at=tx.now - timedelta(seconds=50)))
    put(installation, "1")
    put(installation, "2")
    with installation.container.uow() as tx:
        longest = tx.session.execute(select(Intake.longest_gap_s)).scalar_one()
    assert longest == pytest.approx(50, abs=5)


def published_pieces(trace: Trace) -> chunks.Pieces:
    """Return the chunks of `by_rank_and_flush` in the published columns."""
    start, duration = bodies.published_times()
    keys = {
        key: row
        for row, key in enumerate(
            zip(
                *(getattr(trace, name).tolist() for name in ("rank", "step", "op", "order")),
                strict=True,
            )
        )
    }
    pieces = []
    for name, number, part in chunks.by_rank_and_flush(trace):
        rows = np.array(
            [
                keys[key]
                for key in zip(
                    *(getattr(part, name).tolist() for name in ("rank", "step", "op", "order")),
                    strict=True,
                )
            ]
        )
        pieces.append((name, number, bodies.published(start, duration, rows)))
    return pieces


@pytest.mark.parametrize(
    ("whole", "cut"),
    [
        (bodies.parquet, chunks.parquet_pieces),
        (bodies.parquet, chunks.ndjson_pieces),
        (lambda: bodies.published(*bodies.published_times()), published_pieces),
    ],
    ids=["parquet", "ndjson", "published"],
)
def test_chunks_in_any_order_give_the_report_of_the_whole(
    installation: Installation,
    whole: Callable[[], bytes],
    cut: Callable[[Trace], chunks.Pieces],
) -> None:
    posted = installation.post(whole()).json()["session"]
    pieces = cut(bodies.trace())
    sent = [chunks.send(installation, pieces, session, seed=session) for session in (2, 3)]
    installation.analyze_all()
    expected, none = report(installation, posted)
    assert none == {}
    for session in sent:
        found, coverage = report(installation, session)
        assert found == expected
        assert coverage["chunks"] == 18
        assert [entry["producer"] for entry in coverage["producers"]] == [
            f"rank-{rank}" for rank in range(6)
        ]
        assert coverage["dropped"] == {"operations": 0, "chunks": []}
    timeline = f"/api/v1/sessions/{{}}/timeline?step={bodies.trace().step[-1]}&format=lanes"
    assert (
        installation.client.get(timeline.format(sent[0])).json()
        == installation.client.get(timeline.format(posted)).json()
    )


def test_a_flush_sent_twice_under_other_numbers_is_dropped_and_named(
    installation: Installation,
) -> None:
    posted = installation.post().json()["session"]
    pieces = chunks.parquet_pieces(bodies.trace())
    again = ("rank-3", 7, pieces[10][2])
    assert pieces[10][:2] == ("rank-3", 1)
    sent = chunks.send(installation, [*pieces, again], 2, seed=1)
    installation.analyze_all()
    found, coverage = report(installation, sent)
    assert found == report(installation, posted)[0]
    count = coverage["dropped"]["operations"]
    assert coverage["dropped"]["chunks"] == [
        {"producer": "rank-3", "chunk": 7, "operations": count}
    ]
    assert count == 92
    # only blobs of the two traces, two reports and their maps are left
    with installation.container.engine.connect() as connection:
        blobs = connection.exec_driver_sql("SELECT count(DISTINCT blob_id) FROM blob_part").scalar()
    assert blobs == 6


def test_operations_that_contradict_each_other_discard_the_session(
    installation: Installation,
) -> None:
    first = bodies.trace()
    for rank in RANKS:
        answer = put(installation, rank)
    one = factories.select(first, np.flatnonzero((first.rank == 2) & (first.mb == 0))[:1])
    one.duration_ns[:] += 5
    assert put(installation, "late", body=to_parquet(one)).status_code == 202
    seal(installation)
    installation.analyze_all()
    found = detail(installation, answer)
    assert (found["state"], found["reason_code"]) == ("discarded", "trace.duplicate_operation")
    (fault,) = found["reason_detail"]["faults"]
    assert "chunk late/0, operation 0" in fault["message"]
    timeline = installation.client.get(
        f"/api/v1/sessions/{answer.json()['session']}/timeline?step=1"
    )
    assert (timeline.status_code, timeline.json()["code"]) == (404, "report.none")


def test_sealed_with_pieces_missing_complete_steps_are_analyzed(
    installation: Installation,
) -> None:
    pieces = chunks.parquet_pieces(bodies.trace())
    sent = chunks.send(installation, pieces[:-1], 1, seed=1)
    missing_rank = chunks.send(installation, pieces[:-3], 2, seed=1)
    installation.analyze_all()
    document = installation.client.get(f"/api/v1/sessions/{sent}/report").json()
    assert len(document["steps"]["analyzed"]) == 8
    assert document["steps"]["dropped"]
    found = installation.client.get(f"/api/v1/sessions/{missing_rank}").json()
    assert (found["state"], found["reason_code"]) == ("discarded", "trace.rank_missing")


def test_an_open_session_has_no_timeline_yet(installation: Installation) -> None:
    session = put(installation).json()["session"]
    answer = installation.client.get(f"/api/v1/sessions/{session}/timeline?step=1")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.not_ready")
    answer = installation.client.get(f"/api/v1/sessions/{session}/report")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.not_ready")
