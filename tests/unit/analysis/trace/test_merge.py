"""The merged chunks of a session are the whole session."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from app.analysis.json_text import to_json
from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.encode import to_ndjson_gz, to_parquet
from app.analysis.trace.limits import Limits
from app.analysis.trace.merge import Dropped, Merged, TraceChunk, merge
from app.analysis.trace.metadata import join_metadata
from app.analysis.trace.model import SessionMeta, Sizes
from app.analysis.trace.storage import pack, unpack
from app.errors import InvalidMetadataError, UnanalyzableError
from tests import factories
from tests.random_jobs import random_job
from tests.unit.analysis.trace import bodies
from tests.unit.analysis.trace.bodies import LIMITS, META

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from app.analysis.trace.model import Trace

Rows = list[dict[str, Any]]


def chunk(
    body: bytes, producer: str = "p", number: int = 0, meta: SessionMeta = META
) -> TraceChunk:
    """Return a chunk as it is read from the database."""
    part = decode(body, meta, limits=LIMITS, part=True).trace
    return TraceChunk(producer, number, unpack(b"".join(pack(part)), meta))


def native(made: Rows) -> bytes:
    return bodies.parquet(bodies.native_table(made))


def scattered(count: int, pieces: int, seed: int) -> list[list[int]]:
    """Return the rows of each piece, distributed at random."""
    of_row = np.random.default_rng(seed).integers(0, pieces, count)
    return [found for piece in range(pieces) if (found := np.flatnonzero(of_row == piece).tolist())]


def listed(trace: Trace) -> list[tuple[Any, ...]]:
    """Return the operations as sorted tuples."""
    columns = [getattr(trace, name).tolist() for name in bodies.COLUMNS if name != "op"]
    return sorted(zip(bodies.names_of(trace), *columns, strict=True))


def merged(chunks: Sequence[TraceChunk], seed: int = 1, meta: SessionMeta = META) -> Merged:
    """Merge chunks in random order."""
    order = np.random.default_rng(seed).permutation(len(chunks)).tolist()
    return merge([chunks[place] for place in order], meta)


def refused(*chunks: TraceChunk) -> UnanalyzableError:
    with pytest.raises(UnanalyzableError) as caught:
        merge(chunks, META)
    return caught.value


@pytest.mark.parametrize("body_of", [native, bodies.ndjson], ids=["parquet", "ndjson"])
@pytest.mark.parametrize("seed", range(4))
def test_rows_scattered_over_chunks_are_the_whole(
    body_of: Callable[[Rows], bytes], seed: int
) -> None:
    made = bodies.rows()
    chunks = [
        chunk(body_of([made[row] for row in rows]), f"p{number % 2}", number)
        for number, rows in enumerate(scattered(len(made), 5, seed))
    ]
    result = merged(chunks, seed)
    assert listed(result.trace) == listed(bodies.decoded(body_of(made)))
    assert result.dropped == ()


@pytest.mark.parametrize("seed", range(4))
def test_published_rows_keep_the_recorded_order(seed: int) -> None:
    columns = bodies.published_columns()
    columns["seq_id"] = [order * 3 + 1 for order in columns["seq_id"]]
    table = bodies.published_table(**columns)
    chunks = [
        chunk(bodies.parquet(table.take(rows)), "p", number)
        for number, rows in enumerate(scattered(len(table), 4, seed))
    ]
    whole = bodies.decoded(bodies.parquet(table))
    result = merged(chunks, seed)
    assert listed(result.trace) == listed(whole)
    assert result.trace.step_relative


def test_names_that_depend_on_neighbors_are_given_after_the_merge() -> None:
    base = {"rank": 0, "dp": 0, "pp": 0, "step": 1, "mb": -1, "mc": -1, "dur_ns": 5}
    ops = [
        ("cross-mesh-recv", 1),
        ("forward-compute", 10),
        ("cross-mesh-send", 20),
        ("forward-send-backward-recv", 30),
        ("grad-all-reduce", 40),
        ("grads-reduce-scatter", 50),
        ("checkpoint-save", 60),
        ("another-op", 70),
    ]
    made = [{**base, "op": op, "start_ns": start} for op, start in ops]
    chunks = [chunk(native([row]), "p", number) for number, row in enumerate(made)]
    whole = bodies.decoded(native(made))
    assert "cross-mesh-send" not in bodies.names_of(whole)
    assert listed(merged(chunks).trace) == listed(whole)


@pytest.mark.parametrize("seed", range(6))
def test_random_jobs_give_the_same_report_to_the_last_bit(seed: int) -> None:
    session = random_job(seed, steps=6, launch_overhead=True, interleaved=seed % 2 == 1)
    trace = session.trace
    limits = Limits()
    body_of = to_parquet if seed % 3 else to_ndjson_gz
    whole = decode(body_of(trace), trace.meta, limits=limits).trace
    chunks = []
    for number, rows in enumerate(scattered(len(trace), 7, seed)):
        part = factories.select(trace, np.array(rows))
        decoded = decode(body_of(part), trace.meta, limits=limits, part=True).trace
        chunks.append(TraceChunk("p", number, decoded))
    found = merged(chunks, seed, trace.meta).trace
    assert listed(found) == listed(whole)
    assert to_json(analyze(found).report) == to_json(analyze(whole).report)


def test_operations_that_are_in_two_chunks_are_kept_once() -> None:
    made = bodies.rows()
    chunks = [
        chunk(native(made[:50]), "a", 0),
        chunk(native(made[30:]), "a", 1),
        chunk(native(made[45:48]), "b", 0),
    ]
    result = merged(chunks)
    assert listed(result.trace) == listed(bodies.decoded(native(made)))
    assert result.dropped == (Dropped("a", 1, 20), Dropped("b", 0, 3))


def test_operations_that_contradict_each_other_cost_their_step() -> None:
    made = bodies.rows()
    other = [{**made[1], "op": "gc"}, {**made[0], "dur_ns": 1}]
    result = merged([chunk(native(made), "a"), chunk(native(other), "b", 4)])
    ((step, reason),) = result.trace.repeated_steps
    assert step == made[0]["step"]
    assert reason == "rank 0 has a forward-compute twice, at different times"
    assert set(result.trace.step.tolist()) == {row["step"] for row in made} - {step}


def test_a_session_of_nothing_else_is_refused_with_the_places() -> None:
    made = [row for row in bodies.rows() if row["step"] == bodies.STEPS[0]]
    error = refused(chunk(native(made), "a"), chunk(native([{**made[0], "dur_ns": 1}]), "b", 4))
    assert error.stable_code == "trace.duplicate_operation"
    (fault,) = error.faults
    assert (fault.row, fault.column) == (0, "op")
    assert fault.message.endswith("twice (chunk b/4, operation 0)")
    assert error.message == fault.message


def test_a_rank_that_moves_between_chunks_is_named() -> None:
    made = bodies.rows()
    # One next to the rank's other rows, and one in a separate step.
    later = {**made[0], "dp": 1, "start_ns": made[0]["start_ns"] + 1}
    for moved in (later, {**later, "step": 11}):
        error = refused(chunk(native(made), "a"), chunk(native([moved]), "b"))
        assert error.stable_code == "trace.rank_moved"
        assert "chunk b/0, operation 0" in error.message


def test_checks_of_the_whole_session_are_not_applied_to_a_chunk() -> None:
    table = bodies.published_table()
    later = np.flatnonzero(table["start_ts"].to_numpy() > 0).tolist()
    part = chunk(bodies.parquet(table.take(later)))
    assert part.trace.step_relative
    assert len(merged([part]).trace) == len(later)


def test_metadata_of_producers_adds_up() -> None:
    sizes = Sizes(dp=2, pp=2)
    one = SessionMeta(sizes, trial_name="a", hosts={0: "n0"}, extra={"lengths": {"1": [3]}})
    two = SessionMeta(sizes, hosts={1: "n1"}, gpus={1: "g"}, extra={"lengths": {"2": [4]}})
    both = join_metadata(one, two)
    assert both == join_metadata(two, one)
    assert both.hosts == {0: "n0", 1: "n1"}
    assert both.extra == {"lengths": {"1": [3], "2": [4]}}
    assert both.trial_name == "a"


@pytest.mark.parametrize(
    ("other", "column"),
    [
        (SessionMeta(Sizes(dp=2, pp=4)), "pp"),
        (SessionMeta(Sizes(dp=2, pp=2), hosts={0: "n1"}), "hosts.0"),
        (SessionMeta(Sizes(dp=2, pp=2), trial_name="b"), "trial_name"),
    ],
)
def test_metadata_that_contradicts_is_refused(other: SessionMeta, column: str) -> None:
    known = SessionMeta(Sizes(dp=2, pp=2), trial_name="a", hosts={0: "n0"})
    with pytest.raises(InvalidMetadataError) as caught:
        join_metadata(known, other)
    assert caught.value.stable_code == "metadata.conflict"
    assert caught.value.faults[0].column == column
