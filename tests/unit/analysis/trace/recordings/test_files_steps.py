from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from app.analysis.trace.merge import TraceChunk
from app.analysis.trace.model import Trace
from app.analysis.trace.recordings.files import in_order, number_in
from app.errors import UnanalyzableError
from tests.factories import select, session


def recordings(names: dict[str, int], *, step: int | None = None) -> list[TraceChunk]:
    """Return recordings of one step each, all of one number, by name, and their ranks."""
    trace = session(dp=2, pp=1, steps=3).trace
    numbers = np.unique(trace.step).tolist()
    seen: dict[int, int] = {}
    chunks = []
    for place, (name, rank) in enumerate(names.items()):
        own = numbers[seen.setdefault(rank, 0)]
        seen[rank] += 1
        one = select(trace, (trace.rank == rank) & (trace.step == own))
        counted = np.full(len(one), own if step is None else step)
        chunks.append(TraceChunk(name, place, replace(one, step=counted)))
    return chunks


def steps_of(chunks: list[TraceChunk]) -> list[int]:
    return [int(chunk.trace.step[0]) for chunk in chunks]


def test_steps_with_numbers_of_their_own_stay() -> None:
    names = {"iteration_7/rank0.json": 0, "iteration_8/rank0.json": 0, "iteration_7/rank1.json": 1}
    chunks = recordings(names)
    assert in_order(chunks, of_files=True) == chunks


def test_steps_that_count_anew_are_those_that_names_say() -> None:
    names = {"iteration_7/rank0.json": 0, "iteration_8/rank0.json": 0, "iteration_7/rank1.json": 1}
    assert steps_of(in_order(recordings(names, step=0), of_files=True)) == [7, 8, 7]


def test_a_file_is_named_after_its_last_step() -> None:
    trace = session(dp=1, pp=2, steps=4).trace
    numbers = np.unique(trace.step)
    halves = [select(trace, np.isin(trace.step, numbers[2 * at : 2 * at + 2])) for at in (0, 1)]
    chunks = [
        TraceChunk(
            f"rank0_step_{name}.json",
            0,
            replace(half, step=np.unique(half.step, return_inverse=True)[1].astype(np.int64)),
        )
        for name, half in zip((20, 40), halves, strict=True)
    ]
    found = in_order(chunks, of_files=True)
    assert [np.unique(chunk.trace.step).tolist() for chunk in found] == [[19, 20], [39, 40]]


def test_chunks_of_a_producer_follow_one_another() -> None:
    def chunk(producer: str, number: int, trace: Trace) -> TraceChunk:
        return TraceChunk(producer, number, trace)

    parts = recordings({"a": 0, "b": 0, "c": 1, "d": 1}, step=0)
    chunks = [
        chunk("host", number, parts[place].trace)
        for number, place in enumerate((0, 2, 1, 3))  # rank 0, rank 1, rank 0, rank 1
    ]
    assert steps_of(in_order(chunks, of_files=False)) == [0, 0, 1, 1]


def test_a_copy_of_a_recording_is_no_other_one() -> None:
    one, other = recordings({"rank0.json": 0, "rank1.json": 1})
    again = replace(one, producer="rank0 (1).json")
    assert in_order([one, other, again], of_files=True) == [one, other, again]


@pytest.mark.parametrize(
    ("names", "of_files", "said"),
    [
        (("a/rank0.json", "b/rank0.json"), True, "a/rank0.json and b/rank0.json are"),
        (("step_3/rank0.json", "old/step_3/rank0.json"), True, "rank 0, which differ in step 3"),
        (("one", "two"), False, "chunk one/0 and chunk two/1 are"),
    ],
)
def test_a_rank_twice_is_refused_with_both_recordings(
    names: tuple[str, str],
    of_files: bool,  # noqa: FBT001 - a case
    said: str,
) -> None:
    with pytest.raises(UnanalyzableError, match="are two recordings of rank 0") as caught:
        in_order(recordings(dict.fromkeys(names, 0), step=0), of_files=of_files)
    assert caught.value.stable_code == "trace.rank_twice"
    assert said in caught.value.message
    assert len(caught.value.faults) == 1


@pytest.mark.parametrize(
    ("name", "number"),
    [
        ("iteration_100/rank0_trace.json", 100),
        ("run/global_step_1200/rank3/trace.json.gz", 1200),
        ("rank0_step-7.pt.trace.json", 7),
        ("iter00042.rank0.json", 42),
        ("step_3/rank0_step_5.json", 5),
        ("timesteps12/rank0.json", None),
        ("node-3/worker0.1700000000000.pt.trace.json", None),
    ],
)
def test_the_step_that_a_name_says(name: str, number: int | None) -> None:
    assert number_in(name) == number
