"""Sending a session in chunks: accepted and refused chunks."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING, Any

import pytest

from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, seal

if TYPE_CHECKING:
    import httpx

    from tests.integration.api.conftest import Install, Installation


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
    found = chunks.detail(installation, answer)
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
    found = chunks.detail(installation, first)
    assert found["operations"] == int((bodies.trace().rank == 0).sum())
    assert found["intake"]["refused_chunks"] == 1
    assert found["intake"]["refused_bytes"] == len(other)


def test_a_refused_chunk_spoils_nothing_and_is_named(installation: Installation) -> None:
    first = put(installation, "0")
    before = installation.rows()
    bad = bodies.changed("rank", 7, -1)
    # The chunk is acknowledged unchecked; a worker finds its fault.
    assert put(installation, "1", body=bad).status_code == 202
    installation.absorb_all()
    assert installation.rows() == before | {"inbox": 1}
    intake = chunks.detail(installation, first)["intake"]
    assert (intake["refused_chunks"], intake["refused_bytes"]) == (1, len(bad))
    (named,) = intake["refused"]
    assert (named["producer"], named["number"]) == ("1", 0)
    assert (named["code"], named["faults"][0]["row"]) == ("trace.rank_out_of_range", 7)
    for rank in chunks.RANKS[1:]:
        assert put(installation, rank, 1, chunks.rank_body(int(rank))).status_code == 202
    assert seal(installation).json()["refused"][0]["code"] == "trace.rank_out_of_range"
    installation.analyze_all()
    assert chunks.detail(installation, first)["state"] == "analyzed"
    page = installation.client.get(f"/api/v1/sessions/{first.json()['session']}/report").json()
    assert page["coverage"]["chunks"]["refused_chunks"] == 1


def test_only_the_producer_of_a_refused_chunk_learns_of_it_with_its_next_one(
    installation: Installation,
) -> None:
    put(installation, "0")
    put(installation, "1", body=b"PAR1 rubbish")
    installation.absorb_all()
    told = put(installation, "1", 1, chunks.rank_body(1)).json()["refused"]
    assert [(one["chunk"], one["code"]) for one in told] == [(0, "trace.truncated")]
    assert put(installation, "2").json()["refused"] == []


def test_refused_bytes_are_refused_again_and_others_take_their_place(
    installation: Installation,
) -> None:
    put(installation, "0")
    bad = bodies.changed("rank", 7, -1)
    put(installation, "1", body=bad)
    installation.absorb_all()
    again = put(installation, "1", body=bad)
    assert (again.status_code, again.json()["code"]) == (422, "trace.rank_out_of_range")
    assert again.json()["faults"][0]["row"] == 7
    assert put(installation, "1").status_code == 202
    installation.absorb_all()
    assert installation.rows()["inbox"] == 0
    assert put(installation, "1").status_code == 200


def test_waiting_chunks_are_compared_by_their_bytes(installation: Installation) -> None:
    first = put(installation, "0")
    assert [put(installation, "1").status_code for _ in range(2)] == [202, 200]
    other = put(installation, "1", body=chunks.rank_body(2))
    assert (other.status_code, other.json()["code"]) == (409, "chunk.differs")
    assert chunks.detail(installation, first)["intake"]["waiting_chunks"] == 1
    installation.absorb_all()
    assert chunks.detail(installation, first)["intake"]["waiting_chunks"] == 0


def test_bytes_in_no_known_format_are_refused_at_once(installation: Installation) -> None:
    put(installation, "0")
    refused = put(installation, "1", body=b"junk")
    assert (refused.status_code, refused.json()["code"]) == (415, "trace.unknown_format")
    assert installation.rows()["inbox"] == 0


@pytest.mark.parametrize("kept", [0.01, 0.5, 0.99])
def test_a_body_that_was_cut_off_costs_its_producer_alone(
    installation: Installation, kept: float
) -> None:
    pieces = chunks.ndjson_pieces(bodies.trace())
    at_once = []
    for producer, number, body in pieces:
        cut = body[: int(len(body) * kept)] if (producer, number) == ("rank-1", 1) else body
        answer = put(installation, producer, number, cut, final=number == 2)
        if answer.status_code != 202:
            at_once.append((producer, number))
    installation.absorb_all()
    found = chunks.detail(installation, put(installation, "rank-0", 0, pieces[0][2]))
    later = [(one["producer"], one["number"]) for one in found["intake"]["refused"]]
    assert [*at_once, *later] == [("rank-1", 1)]
    assert found["intake"]["chunks"] == len(pieces) - 1


def test_a_refused_first_chunk_makes_no_session(installation: Installation) -> None:
    assert put(installation, body=b"junk").json()["code"] == "trace.unknown_format"
    assert put(installation, body=b"").json()["code"] == "trace.empty"
    assert installation.rows()["session"] == 0


@pytest.mark.parametrize(
    ("params", "code"),
    [
        ({"pp": 3, "world": 9}, "metadata.conflict"),
        ({"trial_name": "other"}, "metadata.conflict"),
    ],
)
def test_metadata_that_contradicts_the_session_is_refused(
    installation: Installation, params: dict[str, Any], code: str
) -> None:
    put(installation, "0", trial_name="one")
    assert put(installation, "1", **params).status_code == 202
    installation.absorb_all()
    assert refused_codes(installation) == [code]
    assert installation.rows()["blob_part"] == 1


def refused_codes(installation: Installation) -> list[str]:
    """Return the codes of the session's refused chunks."""
    found = chunks.detail(installation, put(installation, "0", trial_name="one"))
    return [one["code"] for one in found["intake"]["refused"]]


def test_sizes_that_contradict_themselves_are_refused_at_once(installation: Installation) -> None:
    put(installation, "0")
    refused = put(installation, "1", world=7)
    assert (refused.status_code, refused.json()["code"]) == (422, "metadata.world_mismatch")


def test_times_of_two_kinds_are_refused(installation: Installation) -> None:
    put(installation, "0")
    put(installation, "1", body=bodies.published(*bodies.published_times()))
    installation.absorb_all()
    assert refused_codes(installation) == ["session.formats_mixed"]


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
        assert put(installation, "1").status_code == 202
        installation.absorb_all()
        assert refused_codes(installation) == ["body.too_many_rows"]


def test_producers_send_at_the_same_time(installation: Installation) -> None:
    with concurrent.futures.ThreadPoolExecutor(12) as senders:
        tasks = [senders.submit(put, installation, rank) for rank in chunks.RANKS for _ in range(2)]
        answers = [task.result() for task in tasks]
    assert sorted(answer.status_code for answer in answers) == [200] * 6 + [202] * 6
    assert len({answer.json()["session"] for answer in answers}) == 1
    installation.absorb_all()
    rows = installation.rows()
    assert (rows["job"], rows["session"], rows["blob_part"]) == (1, 1, 6)
    assert chunks.detail(installation, answers[0])["operations"] == len(bodies.trace())
