"""Output of NCCL's RAS, read into the states of the ranks."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.errors import InvalidTraceError
from app.hangs.ras import is_ras, ras_job, read_ras
from tests.support.equal_hashes import equal_hashes
from tests.support.hanging import Hanging, as_json, ras
from tests.support.nightly import drawn
from tests.support.program_hangs import communicator, ras_of

COUNT = st.integers(1, 1 << 30)
WORLD: list[tuple[int, ...]] = [tuple(range(8))]
PAIRS: list[tuple[int, ...]] = [(0, 1), (2, 3), (4, 5), (6, 7)]
ROUNDS = [WORLD, PAIRS, WORLD, PAIRS, WORLD]


def judged(document: dict[str, object]) -> Hang:
    return judge_hang(ras_job(read_ras(as_json(document))))


def test_a_rank_that_never_launched_what_the_others_did_is_named_with_its_gpu() -> None:
    hang = judged(ras(Hanging(8, ROUNDS, host_stops={5: 2}, ahead=1)))

    (culprit,) = hang.culprits
    assert (culprit.rank, culprit.kind) == (5, HangKind.NEVER_ENTERED)
    assert (culprit.host, culprit.gpu) == ("10.0.0.0", "5")
    assert hang.waiting == (0, 1, 2, 3, 4, 6, 7)
    assert culprit.operation == "ReduceScatter 1 of communicator (0x0)"


@pytest.mark.parametrize("how", ["silent", "dead"])
def test_a_process_that_does_not_answer_is_silent(how: str) -> None:
    job = Hanging(8, ROUNDS, host_stops={3: 4})
    hang = judged(ras(job, silent=(3,)) if how == "silent" else ras(job, dead=(3,)))
    assert [(one.rank, one.kind) for one in hang.culprits] == [(3, HangKind.SILENT)]


def test_a_job_that_goes_on_has_no_rank_that_waits() -> None:
    assert judged(ras(Hanging(8, ROUNDS))).kind is HangKind.NOTHING_PENDING


def test_sends_and_receives_may_differ() -> None:
    document = ras(Hanging(8, ROUNDS))
    counts = document["communicators"][0]["ranks"]
    assert len({one["collective_counts"]["SendRecv"] for one in counts}) > 1
    assert judged(document).kind is HangKind.NOTHING_PENDING


def test_ranks_are_numbered_by_the_communicator_of_all() -> None:
    document = ras(Hanging(8, ROUNDS))
    del document["communicators"][0]
    with pytest.raises(InvalidTraceError, match="No communicator has all 8") as refused:
        judged(document)
    assert refused.value.stable_code == "hang.no_world"


def test_a_recorders_dump_with_the_same_first_key_is_another_kind() -> None:
    assert is_ras(json.dumps(ras(Hanging(8, ROUNDS)), indent=2).encode())
    assert not is_ras(b'{"nccl_version": "2.28.3", "pg_config": {"0": {"communicators": 1}}}')


def test_a_file_without_a_readable_communicator_is_refused_with_its_place() -> None:
    document = ras(Hanging(8, [WORLD]))
    document["communicators"][0]["ranks"][0]["rank"] = -1
    with pytest.raises(InvalidTraceError, match=r"communicators\.0\.ranks\.0\.rank") as refused:
        judged(document)
    assert refused.value.stable_code == "hang.invalid_ras"


LATE = [{"AllReduce": 41 if rank == 5 else 42} for rank in range(16)]
GARBAGE: dict[str, dict[str, Any]] = {
    "negative rank": {"ranks": [{"rank": -1, "host": "", "pid": 0}]},
    "a rank beyond its size": {"size": 2},
    "a size beyond 64 bits": {"size": 1 << 80},
    "no ranks": {"ranks": None},
    "counts": {"ranks": [{"rank": 0, "collective_counts": {"AllReduce": 1 << 63}}]},
    "processes that do not exist": {
        "ranks": [{"rank": rank, "host": "\x07?", "pid": 1 << 40 | rank} for rank in range(4)]
    },
}


@pytest.mark.parametrize("what", GARBAGE)
def test_a_communicator_of_garbage_costs_only_itself(what: str) -> None:
    bad = communicator([{"AllReduce": 7}] * 4, "0xbad") | GARBAGE[what]
    hang = judge_hang(ras_job(read_ras(ras_of(bad, communicator(LATE)))))

    assert [(one.rank, one.kind) for one in hang.culprits] == [(5, HangKind.NEVER_ENTERED)]
    assert hang.culprits[0].operation == "AllReduce 42 of communicator (0x1)"
    assert hang.unknown == ("Communicator 0xbad of RAS is left out: its ranks cannot be read.",)


@given(
    counts=st.dictionaries(
        st.sampled_from(["AllGather", "AllReduce", "Reduce"]), COUNT, min_size=2
    ),
    late=st.sets(st.integers(0, 8), min_size=1, max_size=4),
    data=st.data(),
)
@drawn(60)
def test_operations_are_counted_by_kind(
    counts: dict[str, int], late: set[int], data: st.DataObject
) -> None:
    kind = data.draw(st.sampled_from(sorted(counts)))
    ahead = counts | {kind: counts[kind] + 1}
    rows = [counts if rank in late else ahead for rank in range(9)]
    hang = judge_hang(ras_job(read_ras(ras_of(communicator(rows)))))

    assert {one.rank for one in hang.culprits} == late
    assert hang.culprits[0].operation == f"{kind} {counts[kind] + 1} of communicator (0x1)"


def test_an_operation_that_few_ranks_have_launched_is_theirs() -> None:
    rows = [{"AllGather": 301 if rank in (2, 3) else 300, "AllReduce": 9} for rank in range(16)]
    hang = judge_hang(ras_job(read_ras(ras_of(communicator(rows)))))

    assert [(one.rank, one.kind) for one in hang.culprits] == [
        (2, HangKind.MISMATCH),
        (3, HangKind.MISMATCH),
    ]
    assert hang.culprits[0].operation == "AllGather 301 of communicator (0x1)"


def test_ranks_that_have_launched_different_kinds_disagree() -> None:
    rows = [{"AllGather": 300 + (rank != 4), "AllReduce": 9 + (rank == 4)} for rank in range(8)]
    hang = judge_hang(ras_job(read_ras(ras_of(communicator(rows)))))

    assert [(one.rank, one.kind) for one in hang.culprits] == [(4, HangKind.MISMATCH)]
    assert "calls AllReduce 10" in hang.sentence
    assert "7 ranks call AllGather 301" in hang.sentence


def test_ranks_that_are_several_operations_ahead_wait_in_the_first() -> None:
    rows = [{"AllGather": 300, "AllReduce": 9} for _ in range(8)]
    rows[3] = {"AllGather": 299, "AllReduce": 7}
    hang = judge_hang(ras_job(read_ras(ras_of(communicator(rows)))))

    assert [one.rank for one in hang.culprits] == [3]
    assert "AllGather 300 or AllReduce 8 of communicator" in hang.sentence


@pytest.mark.parametrize("key", ["pid", "cuda_dev", "nvml_dev"])
def test_processes_with_equal_hashes_are_refused(key: str) -> None:
    document = ras(Hanging(8, [WORLD]))
    listed = document["communicators"][0]["ranks"]
    for rank, number in zip(listed, equal_hashes(len(listed)), strict=True):
        rank[key] = number
    with pytest.raises(InvalidTraceError, match=rf"communicators\.0\.ranks\.4\.{key}"):
        read_ras(as_json(document))
