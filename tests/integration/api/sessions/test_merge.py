"""The merge of a session's chunks: the report is that of the whole, in any order of arrival."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.trace.encode import to_parquet
from app.analysis.trace.model import Trace
from tests import factories
from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, report, seal

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.integration.api.conftest import Installation


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
    # Only the blobs of two traces, two reports and their maps are left.
    with installation.container.engine.connect() as connection:
        blobs = connection.exec_driver_sql("SELECT count(DISTINCT blob_id) FROM blob_part").scalar()
    assert blobs == 6


def test_operations_that_contradict_each_other_cost_their_step(
    installation: Installation,
) -> None:
    first = bodies.trace()
    for rank in chunks.RANKS:
        answer = put(installation, rank)
    one = factories.select(first, np.flatnonzero((first.rank == 2) & (first.mb == 0))[:1])
    one.duration_ns[:] += 5
    assert put(installation, "late", body=to_parquet(one)).status_code == 202
    seal(installation)
    installation.analyze_all()
    found = chunks.detail(installation, answer)
    assert found["state"] == "analyzed"
    report = installation.client.get(f"/api/v1/sessions/{answer.json()['session']}/report").json()
    (dropped,) = report["steps"]["dropped"]
    assert dropped["step"] == int(one.step[0])
    assert "rank 2 has a " in dropped["reason"]


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
    coverage = installation.client.get(f"/api/v1/sessions/{missing_rank}/report").json()["coverage"]
    assert (coverage["ranks_expected"], coverage["ranks_present"]) == (6, 5)
    assert [one["rank"] for one in coverage["missing"]] == [5]
    page = installation.client.get(f"/sessions/{missing_rank}").text
    assert "rank 5 is missing" in page


def test_an_open_session_has_no_timeline_yet(installation: Installation) -> None:
    session = put(installation).json()["session"]
    answer = installation.client.get(f"/api/v1/sessions/{session}/timeline?step=1")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.not_ready")
    answer = installation.client.get(f"/api/v1/sessions/{session}/report")
    assert (answer.status_code, answer.json()["code"]) == (404, "report.not_ready")
