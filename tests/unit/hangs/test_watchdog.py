"""Logs of PyTorch's watchdog, in the forms of several versions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.verdict import judge_hang
from app.errors import InvalidTraceError
from app.hangs.files import FileKind, job_of, kind_of, read_hang_file
from tests.support.hanging import as_json
from tests.support.nightly import drawn
from tests.support.pasted import watchdog_log
from tests.support.program_hangs import called, program_dumps

GROUPS = {
    "2.3": "PG 0 ",
    "2.4": "PG 0 (default_pg) ",
    "2.6": "PG ID 0 PG GUID 0(default_pg) ",
}
STUCK = (41, 39)  # enqueued and completed
LATE = (39, 39)


def judged(bodies: dict[str, bytes]) -> Hang:
    files = (file for name, body in bodies.items() for file in read_hang_file(name, body))
    return judge_hang(job_of(files))


@pytest.mark.parametrize("version", GROUPS)
@given(data=st.data())
@drawn(20)
def test_a_rank_that_has_enqueued_less_is_named(version: str, data: st.DataObject) -> None:
    world = data.draw(st.integers(3, 40))
    late = data.draw(st.sets(st.integers(0, world - 1), min_size=1, max_size=(world - 1) // 2))
    statuses = {rank: LATE if rank in late else STUCK for rank in range(world)}
    order = data.draw(st.permutations(list(statuses)))
    text = watchdog_log({rank: statuses[rank] for rank in order}, group=GROUPS[version])
    assert kind_of(text.encode()) is FileKind.FLIGHT_RECORDER
    hang = judged({"train.log": text.encode()})

    assert {one.rank: one.kind for one in hang.culprits} == dict.fromkeys(
        late, HangKind.NEVER_ENTERED
    )
    assert hang.culprits[0].operation == "nccl:all_reduce 40 of default_pg (0)"
    assert "TORCH_NCCL_TRACE_BUFFER_SIZE=2000" in hang.unknown[-1]


def test_logs_of_single_ranks_are_read_together() -> None:
    statuses = {rank: LATE if rank == 2 else STUCK for rank in range(8)}
    bodies = {
        f"attempt_0/{rank}/stderr.log": watchdog_log({rank: own}).encode()
        for rank, own in statuses.items()
    }
    assert [one.rank for one in judged(bodies).culprits] == [2]


def test_a_few_ranks_that_time_out_alone_have_called_alone() -> None:
    statuses = {rank: STUCK if rank == 5 else LATE for rank in range(8)}
    hang = judged({"train.log": watchdog_log(statuses).encode()})
    assert [(one.rank, one.kind) for one in hang.culprits] == [(5, HangKind.MISMATCH)]


def test_unlike_sizes_are_a_mismatch() -> None:
    numel = {rank: 4097 if rank == 1 else 4096 for rank in range(8)}
    text = watchdog_log(dict.fromkeys(range(8), STUCK), numel=numel)
    hang = judged({"train.log": text.encode()})

    assert [(one.rank, one.kind) for one in hang.culprits] == [(1, HangKind.MISMATCH)]
    assert "7 ranks call nccl:all_reduce of 4096" in hang.sentence


def test_ranks_of_another_group_are_numbered_by_the_prefix() -> None:
    statuses = {rank: LATE if rank == 10 else STUCK for rank in (8, 10, 12, 14)}
    group = "PG ID 3 PG GUID 17(EXPERT) "
    hang = judged({"train.log": watchdog_log(statuses, group=group).encode()})
    assert [one.rank for one in hang.culprits] == [10]
    assert hang.culprits[0].operation == "nccl:all_reduce 40 of EXPERT (17)"

    text = watchdog_log(statuses, group=group, has_prefix=False)
    with pytest.raises(InvalidTraceError, match="names its rank; with TORCH_NCCL_TRACE"):
        read_hang_file("train.log", text.replace("WorkNCCL", "Work").encode())


def test_a_rank_without_a_line_is_silent_if_the_others_have_one() -> None:
    statuses = {rank: STUCK for rank in range(8) if rank != 3}
    hang = judged({"train.log": watchdog_log(statuses).encode()})
    assert [(one.rank, one.kind) for one in hang.culprits] == [(3, HangKind.SILENT)]

    of_one_node = dict.fromkeys(range(8, 16), STUCK)
    assert judged({"node1.log": watchdog_log(of_one_node).encode()}).confidence < 0.5


def test_the_first_lines_of_a_hang_count_and_those_of_the_last_start() -> None:
    statuses = {rank: LATE if rank == 2 else STUCK for rank in range(4)}
    aborted = {rank: (enqueued, enqueued) for rank, (enqueued, _) in statuses.items()}
    before = {rank: (900 + enqueued, 900) for rank, (enqueued, _) in statuses.items()}
    text = watchdog_log(before) + watchdog_log(statuses) + watchdog_log(aborted)
    hang = judged({"train.log": text.encode()})

    assert [one.rank for one in hang.culprits] == [2]
    assert "40 of default_pg" in hang.sentence


def test_a_number_that_was_never_set_is_none() -> None:
    statuses = {rank: (1, 3452013982) if rank != 1 else (0, 0) for rank in range(4)}
    hang = judged({"train.log": watchdog_log(statuses, group=GROUPS["2.3"]).encode()})
    assert [one.rank for one in hang.culprits] == [1]


def test_old_versions_say_only_what_timed_out() -> None:
    line = (
        "[E ProcessGroupNCCL.cpp:475] [Rank {rank}] Watchdog caught collective operation timeout: "
        "WorkNCCL(SeqNum={number}, OpType=ALLREDUCE, TensorShape=[2, 8], Timeout(ms)=1800000)\n"
    )
    text = "".join(line.format(rank=rank, number=7 - (rank == 2)) for rank in range(4))
    hang = judged({"train.log": text.encode()})
    assert [one.rank for one in hang.culprits] == [2]


def test_a_dump_of_a_rank_counts_more_than_its_log() -> None:
    dumps = program_dumps([[] if rank == 2 else [called()] for rank in range(4)])
    bodies = {f"_dump_{rank}": as_json(dumps[rank]) for rank in (0, 1, 2)}
    # The log is of numbers that the dumps contradict, but for the rank without a dump.
    log = watchdog_log({0: (5, 5), 3: (6, 5)}, numel=7)
    hang = judged(bodies | {"train.log": log.encode()})

    assert [(one.rank, one.kind) for one in hang.culprits] == [(2, HangKind.NEVER_ENTERED)]
    assert hang.waiting == (0, 1, 3)
    assert hang.unknown == ()


def test_sends_and_receives_are_not_compared_by_number() -> None:
    statuses = {0: (12, 11), 1: (31, 31), 2: (7, 7)}
    text = watchdog_log(statuses, operation="SEND")
    assert judged({"train.log": text.encode()}).culprits == ()


def test_a_log_without_lines_of_the_watchdog_is_of_no_kind() -> None:
    assert read_hang_file("train.log", b"step 1 | loss 2.3\nProcessGroupNCCL.cpp is slow\n") == ()


@pytest.mark.parametrize("hour", [3, 9], ids=["same-time", "later"])
@pytest.mark.parametrize("first", [None, 2, 6], ids=str)
@pytest.mark.parametrize("is_one", [True, False], ids=["one-log", "a-log-a-rank"])
def test_the_last_attempt_in_a_log_counts(hour: int, first: int | None, *, is_one: bool) -> None:
    """A rank is late in each attempt, or no rank in the first one."""
    before = {rank: LATE if rank == first else STUCK for rank in range(8)}
    after = {rank: (899, 899) if rank == 6 else (902, 899) for rank in range(8)}
    if is_one:
        bodies = {"train.log": watchdog_log(before) + watchdog_log(after, hour=hour)}
    else:
        bodies = {
            f"{rank}.log": watchdog_log({rank: before[rank]})
            + watchdog_log({rank: after[rank]}, hour=9)
            for rank in range(8)
        }
    hang = judged({name: text.encode() for name, text in bodies.items()})

    assert {one.rank: one.kind for one in hang.culprits} == {6: HangKind.NEVER_ENTERED}
    assert hang.culprits[0].operation == "nccl:all_reduce 900 of default_pg (0)"


def test_operations_that_an_abort_completes_are_no_other_attempt() -> None:
    statuses = {rank: LATE if rank == 2 else STUCK for rank in range(8)}
    aborted = dict.fromkeys(range(8), (44, 44))
    text = watchdog_log(statuses) + watchdog_log(aborted)
    hang = judged({"train.log": text.encode()})

    assert [one.rank for one in hang.culprits] == [2]
    assert hang.culprits[0].operation == "nccl:all_reduce 40 of default_pg (0)"
