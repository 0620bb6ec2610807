"""Hangs of a program's own making: ranks that call otherwise are named, and no machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from app.analysis.hangs.findings import Hang, HangKind
from app.analysis.hangs.state import (
    Frame,
    Group,
    JobState,
    Pending,
    RankState,
    Reached,
)
from app.analysis.hangs.verdict import judge_hang
from tests.support.nightly import drawn
from tests.support.program_hangs import (
    IN_TORCH,
    SAVING,
    called,
    program_dumps,
    ring_batch,
    state_of,
)

# An incident fires from this confidence on.
FIRES = 0.5
BROADCAST = called("nccl:broadcast", frames=[IN_TORCH, SAVING])


def blamed(hang: Hang) -> dict[int, HangKind]:
    return {culprit.rank: culprit.kind for culprit in hang.culprits}


def some_call(world: int, callers: Sequence[int], call: dict[str, Any]) -> list[list[Any]]:
    return [[call] if rank in callers else [] for rank in range(world)]


@given(world=st.integers(3, 24), data=st.data())
@drawn(60)
def test_few_ranks_that_call_a_collective_alone_are_named_and_not_the_others(
    world: int, data: st.DataObject
) -> None:
    ranks = st.integers(0, world - 1)
    callers = data.draw(st.sets(ranks, min_size=1, max_size=(world - 1) // 2))
    hang = judge_hang(state_of(program_dumps(some_call(world, sorted(callers), BROADCAST))))

    assert blamed(hang) == dict.fromkeys(callers, HangKind.MISMATCH)
    assert hang.waiting == tuple(sorted(callers))
    assert "called in save (/app/checkpoint.py:77)" in hang.sentence
    assert "no machine is to blame" in hang.remedy
    assert hang.confidence >= FIRES


def test_few_ranks_that_do_not_call_what_the_others_call_are_late() -> None:
    hang = judge_hang(state_of(program_dumps(some_call(8, [0, 1, 2, 4, 5, 6, 7], BROADCAST))))
    assert blamed(hang) == {3: HangKind.NEVER_ENTERED}


def test_both_sides_are_named_if_half_of_the_ranks_call_a_collective() -> None:
    hang = judge_hang(state_of(program_dumps(some_call(4, [0, 2], BROADCAST))))

    callers = dict.fromkeys((0, 2), HangKind.MISMATCH)
    assert blamed(hang) == callers | dict.fromkeys((1, 3), HangKind.NEVER_ENTERED)
    assert "read the stacks of both sides" in hang.remedy
    assert FIRES <= hang.confidence < 0.8


def test_many_ranks_in_their_loader_are_late() -> None:
    job = state_of(program_dumps(some_call(4, [0], BROADCAST)))
    loading = (Frame("read", "/app/data.py", 12),)
    ranks = {
        rank: replace(state, stack=loading) if rank else state for rank, state in job.ranks.items()
    }
    hang = judge_hang(replace(job, ranks=ranks))
    assert blamed(hang) == dict.fromkeys((1, 2, 3), HangKind.NEVER_ENTERED)


def test_a_missing_dump_hides_no_lone_caller() -> None:
    dumps = program_dumps(some_call(8, [0], BROADCAST))
    hang = judge_hang(state_of(dumps, without=[7]))

    assert blamed(hang) == {0: HangKind.MISMATCH}
    assert hang.unknown == ("Nothing is known of rank 7.",)


def test_a_lone_caller_is_named_if_the_others_wait_for_it_elsewhere() -> None:
    """Rank 0 saves, and its partner waits for it in the next step."""
    groups = (Group("0", "default_pg", tuple(range(8))), Group("1", "TENSOR", (0, 1)))
    world = {0: Reached(5, 5)}
    ranks = {rank: RankState(rank, (), world) for rank in range(2, 8)}
    ranks[0] = RankState(0, (Pending(0, 6, "nccl:broadcast"),), {0: Reached(6, 5)})
    ranks[1] = RankState(1, (Pending(1, 9, "nccl:all_reduce"),), world)
    hang = judge_hang(JobState(groups, ranks))

    assert blamed(hang) == {0: HangKind.MISMATCH}


UNLIKE = {
    "operation": called("nccl:broadcast"),
    "size": called(input_sizes=[[4097]], output_sizes=[[4097]]),
    "type": called(input_dtypes=["BFloat16"], output_dtypes=["BFloat16"]),
    "further tensor": called(input_sizes=[[4096], [1]], output_sizes=[[4096], [1]]),
    "output": called("nccl:_all_gather_base", output_sizes=[[8192]]),
}
USUAL = {"output": called("nccl:_all_gather_base", output_sizes=[[4096]])}
WORDS = {
    "operation": "calls nccl:broadcast of 4096",
    "size": "calls nccl:all_reduce of 4097",
    "type": "calls nccl:all_reduce of 4096 in BFloat16",
    "further tensor": "calls nccl:all_reduce of 4096, 1",
    "output": "calls nccl:_all_gather_base of 4096 into 8192",
}


@pytest.mark.parametrize("what", UNLIKE)
@pytest.mark.parametrize("state", ["scheduled", "started"])
def test_a_rank_that_calls_with_something_unlike_is_named_and_the_others_wait(
    what: str, state: str
) -> None:
    usual = USUAL.get(what, called())
    last = [[(UNLIKE[what] if rank == 3 else usual) | {"state": state}] for rank in range(6)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == {3: HangKind.MISMATCH}
    assert hang.waiting == (0, 1, 2, 4, 5)
    assert hang.sentence.startswith(f"5 ranks wait for rank 3. Rank 3 {WORDS[what]} as number 6")
    assert hang.confidence >= FIRES


@pytest.mark.parametrize("what", UNLIKE)
def test_if_every_second_rank_calls_with_something_unlike_all_are_named(what: str) -> None:
    last = [[UNLIKE[what] if rank % 2 else USUAL.get(what, called())] for rank in range(6)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == dict.fromkeys(range(6), HangKind.MISMATCH)
    assert "3 ranks call" in hang.sentence
    assert hang.confidence >= FIRES


def test_a_mismatch_is_sure_however_few_ranks_wait_in_it() -> None:
    """Two ranks of a group disagree; all others of the job wait somewhere else."""
    groups = (Group("0", "PAIR", (0, 1)), *(Group(str(n), "OWN", (n,)) for n in range(2, 16)))
    ranks = {
        rank: RankState(rank, (Pending(max(rank - 1, 0), 3, f"nccl:{rank % 2}"),))
        for rank in range(16)
    }
    hang = judge_hang(JobState(groups, ranks))

    assert blamed(hang) == dict.fromkeys((0, 1), HangKind.MISMATCH)
    assert hang.confidence >= FIRES


@pytest.mark.parametrize(
    "name", ["nccl:all_to_all", "nccl:ALLTOALL_BASE", "nccl:gather", "nccl:scatter"]
)
def test_operations_whose_sizes_may_differ_are_no_mismatch(name: str) -> None:
    last = [
        [called(name, input_sizes=[[rank + 1]], output_sizes=[[rank + 2]])] for rank in range(4)
    ]
    hang = judge_hang(state_of(program_dumps(last)))
    assert (hang.kind, hang.culprits) == (HangKind.ALL_ENTERED, ())


@pytest.mark.parametrize("sizes", [[[6, 96]], [[96]] * 6], ids=["flattened", "list"])
def test_inputs_of_a_reduce_scatter_are_compared(sizes: list[list[int]]) -> None:
    usual = called("nccl:reduce_scatter", input_sizes=[[6, 80]], output_sizes=[[80]])
    other = usual | {"input_sizes": sizes, "output_sizes": [[96]]}
    last = [[other if rank == 2 else usual] for rank in range(6)]
    assert blamed(judge_hang(state_of(program_dumps(last)))) == {2: HangKind.MISMATCH}


@pytest.mark.parametrize("odd", [0, 3], ids=["root", "receiver"])
def test_types_of_a_scatter_are_compared(odd: int) -> None:
    last = []
    for rank in range(6):
        sizes = [] if rank else [[64]] * 6
        dtype = "Half" if rank == odd else "Float"
        types = {"input_dtypes": [dtype] * len(sizes), "output_dtypes": [dtype]}
        last.append([called("nccl:scatter", input_sizes=sizes, output_sizes=[[64]], **types)])
    assert blamed(judge_hang(state_of(program_dumps(last)))) == {odd: HangKind.MISMATCH}


@pytest.mark.parametrize(
    ("shape", "other"), [([2, 512], [1024]), ([4, 8], [8, 4]), ([], [1])], ids=str
)
def test_another_shape_of_equally_many_elements_is_no_mismatch(
    shape: list[int], other: list[int]
) -> None:
    last = [[called(input_sizes=[other if rank == 3 else shape])] for rank in range(6)]
    for rank, (own,) in enumerate(last):
        own["output_sizes"] = [other if rank == 3 else shape]
    assert judge_hang(state_of(program_dumps(last))).kind is HangKind.ALL_ENTERED


def test_ranks_that_have_not_entered_are_named_with_a_mismatch() -> None:
    unlike = called(input_sizes=[[2000]], output_sizes=[[2000]])
    last = [[unlike] if rank == 5 else [called()] for rank in range(16)]
    last[9] = last[10] = []
    hang = judge_hang(state_of(program_dumps(last)))

    late = dict.fromkeys((9, 10), HangKind.NEVER_ENTERED)
    assert blamed(hang) == {5: HangKind.MISMATCH} | late
    assert hang.sentence.startswith("13 ranks wait for ranks 5, 9 and 10.")
    assert {rank for link in hang.chain for rank in link.waits_for} >= {5, 9, 10}
    assert "no machine is to blame" in hang.remedy


def test_an_uneven_all_gather_is_no_mismatch_if_its_outputs_agree() -> None:
    sizes = [[rank + 1] for rank in range(4)]
    last = [[called("nccl:all_gather", input_sizes=[size], output_sizes=sizes)] for size in sizes]
    assert judge_hang(state_of(program_dumps(last))).kind is HangKind.ALL_ENTERED

    last[2][0]["output_sizes"] = sizes[:-1]
    assert blamed(judge_hang(state_of(program_dumps(last)))) == {2: HangKind.MISMATCH}


def test_the_number_of_ranks_that_call_differently_does_not_matter_for_the_text() -> None:
    last = [[called(input_sizes=[[rank]], output_sizes=[[rank]])] for rank in range(64)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert len(hang.culprits) == 64
    assert max(len(culprit.evidence) for culprit in hang.culprits) < 200


def test_a_device_that_has_not_started_what_the_others_have_is_named() -> None:
    last = [[called(state="scheduled" if rank == 2 else "started")] for rank in range(8)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == {2: HangKind.DEVICE_STUCK}
    assert hang.waiting == (0, 1, 3, 4, 5, 6, 7)
    assert "has not started it" in hang.sentence
    assert hang.confidence >= FIRES


def test_the_network_is_named_only_if_all_devices_run_the_operation() -> None:
    started = judge_hang(state_of(program_dumps([[called()]] * 4)))
    assert "look at the network" in started.remedy

    enqueued = judge_hang(state_of(program_dumps([[called(state="scheduled")]] * 4)))
    assert (enqueued.kind, enqueued.culprits) == (HangKind.ALL_ENTERED, ())
    assert enqueued.remedy.startswith("Compare the stacks")


def test_transfers_of_a_finished_batch_are_over() -> None:
    last = [[] if rank == 6 else [called()] for rank in range(8)]
    hang = judge_hang(state_of(program_dumps(last, batches=4)))

    assert blamed(hang) == {6: HangKind.NEVER_ENTERED}
    assert hang.waiting == (0, 1, 2, 3, 4, 5, 7)
    assert hang.confidence > 0.9


def test_a_rank_that_does_not_enter_a_batch_is_named_whatever_the_others_do_first() -> None:
    last = [[] if rank == 2 else ring_batch(rank, 5, 1, is_over=False) for rank in range(5)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == {2: HangKind.NEVER_ENTERED}
    assert set(hang.waiting) >= {1, 3}


def test_a_batch_that_all_ranks_have_entered_has_no_culprit() -> None:
    last = [ring_batch(rank, 5, 1, is_over=False) for rank in range(5)]
    assert judge_hang(state_of(program_dumps(last))).kind is HangKind.ALL_ENTERED


@pytest.mark.parametrize("has_ended", [False, True], ids=["scheduled", "completed"])
@pytest.mark.parametrize("world", [5, 16])
def test_a_neighbour_that_has_finished_its_batch_is_not_blamed(
    world: int,
    has_ended: bool,  # noqa: FBT001
) -> None:
    """Only the two neighbours of the rank that is late wait; all others have finished."""
    late = world - 2
    last: list[list[dict[str, Any]]] = []
    for rank in range(world):
        is_over = rank not in {late - 1, late + 1}
        own = [] if rank == late else ring_batch(rank, world, 5, is_over=is_over)
        end = {"state": "completed", "retired": True} if has_ended and is_over else {}
        last.append([{**entry, **end} for entry in own])
    hang = judge_hang(state_of(program_dumps(last, batches=4)))

    assert blamed(hang) == {late: HangKind.NEVER_ENTERED}
    assert hang.waiting == (late - 1, late + 1)


def test_a_late_peer_that_numbers_its_transfers_otherwise_is_named() -> None:
    """Rank 1 of a pipeline has twice as many transfers as rank 0, which waits for it."""
    sent = [over("send 0->1", number) for number in range(1, 6)]
    received = [over("recv 1<-0", number) for number in (2, 4, 6)]
    last = [[*sent[:3], transfer("send 0->1", 4)], received, []]
    hang = judge_hang(state_of(program_dumps(last)))
    assert blamed(hang)[1] is HangKind.NEVER_ENTERED

    last = [[*sent[:5], transfer("send 0->1", 6)], received, []]
    assert blamed(judge_hang(state_of(program_dumps(last))))[1] is HangKind.NEVER_ENTERED


def test_two_ranks_that_both_send_first_wait_for_each_other() -> None:
    def transfers(rank: int, numbers: tuple[int, int]) -> list[dict[str, Any]]:
        names = f"nccl:send {rank}->{1 - rank}", f"nccl:recv {rank}<-{1 - rank}"
        return [
            called(name, is_p2p=True, p2p_seq_id=number, collective_seq_id=0, state="scheduled")
            for name, number in zip(names, numbers, strict=True)
        ]

    crossed = judge_hang(state_of(program_dumps([transfers(rank, (1, 2)) for rank in (0, 1)])))
    assert blamed(crossed) == dict.fromkeys((0, 1), HangKind.MISMATCH)
    assert "both send first" in crossed.sentence

    together = judge_hang(state_of(program_dumps([transfers(rank, (1, 1)) for rank in (0, 1)])))
    assert (together.kind, together.culprits) == (HangKind.ALL_ENTERED, ())


def transfer(name: str, number: int) -> dict[str, Any]:
    fields = {"is_p2p": True, "p2p_seq_id": number, "collective_seq_id": 0, "state": "scheduled"}
    return called(f"nccl:{name}", **fields)


def over(name: str, number: int) -> dict[str, Any]:
    return transfer(name, number) | {"state": "completed", "retired": True}


def test_the_transfer_for_which_all_ranks_wait_in_the_end_is_named() -> None:
    last = [[transfer("send 0->1", 5)], [transfer("recv 1<-0", 5)], [called()], [called()]]
    hang = judge_hang(state_of(program_dumps(last)))
    assert hang.kind is HangKind.ALL_ENTERED
    assert hang.sentence.startswith("Ranks 0 and 1 have entered nccl:send 5 of default_pg (0),")


@pytest.mark.parametrize("own", [{"input_sizes": [[2048]]}, {"input_dtypes": ["Half"]}], ids=str)
def test_the_ends_of_a_transfer_of_other_sizes_or_types_are_named(own: dict[str, Any]) -> None:
    last = [[transfer("send 0->1", 5) | own], [transfer("recv 1<-0", 5)], [called()], [called()]]
    hang = judge_hang(state_of(program_dumps(last)))
    assert blamed(hang) == dict.fromkeys((0, 1), HangKind.MISMATCH)


def test_a_ring_whose_ranks_all_send_in_a_first_batch_waits_for_itself() -> None:
    last = [
        [transfer(f"send {rank}->{(rank + 1) % 4}", 1), transfer(f"recv {rank}<-{rank - 1 & 3}", 2)]
        for rank in range(4)
    ]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == dict.fromkeys(range(4), HangKind.MISMATCH)
    assert "all send first" in hang.sentence


def test_a_rank_whose_batch_lacks_a_transfer_of_its_peer_is_named() -> None:
    last = [
        [transfer("send 0->1", 1), transfer("recv 0<-1", 1)],
        [transfer("send 1->0", 1)],
        [],
    ]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == {1: HangKind.MISMATCH}
    assert "never entered nccl:send 1 of default_pg (0) of the same batch" in hang.sentence


def test_batches_to_other_peers_do_not_match() -> None:
    last = [
        [transfer("send 0->1", 1), transfer("recv 0<-2", 1)],
        [transfer("send 1->2", 1), transfer("recv 1<-0", 1)],
        [transfer("send 2->1", 1), transfer("recv 2<-0", 1)],
    ]
    hang = judge_hang(state_of(program_dumps(last)))

    assert set(blamed(hang).values()) == {HangKind.MISMATCH}
    assert "their transfers do not match" in hang.sentence


def test_collectives_of_a_batch_are_compared_as_one() -> None:
    def batch(sizes: Sequence[int]) -> list[dict[str, Any]]:
        name, number = "nccl:_all_gather_base", 6
        members = [called(name, input_sizes=[[size]], collective_seq_id=number) for size in sizes]
        return [
            *members,
            called("nccl:coalesced", input_sizes=[], output_sizes=[], collective_seq_id=number),
        ]

    last = [batch([64, 32, 8] if rank == 1 else [64, 32]) for rank in range(4)]
    hang = judge_hang(state_of(program_dumps(last)))

    assert blamed(hang) == {1: HangKind.MISMATCH}
    assert "calls nccl:_all_gather_base of 64, 32, 8" in hang.sentence
    assert judge_hang(state_of(program_dumps([batch([64])] * 4))).kind is HangKind.ALL_ENTERED


@pytest.mark.parametrize("is_retired", [False, True], ids=["completed-late", "retired"])
def test_an_operation_that_the_watchdog_aborted_is_not_over(is_retired: bool) -> None:  # noqa: FBT001
    """Dumps that are written after the abort have it as completed or retired."""
    last = [[called()] * 2 if rank != 3 else [] for rank in range(6)]
    dumps = program_dumps(last)
    for dump in dumps:
        for entry in dump["entries"]:
            if entry["state"] != "completed":
                entry["retired"] = True
            if entry["state"] != "completed" and not is_retired:
                entry["state"] = "completed"
                entry["time_discovered_completed_ns"] = (
                    dump["entries"][5]["time_created_ns"] + entry["timeout_ms"] * 1_000_000
                )
    hang = judge_hang(state_of(dumps))

    assert blamed(hang) == {3: HangKind.NEVER_ENTERED}
    assert hang.culprits[0].operation == "nccl:all_reduce 6 of default_pg (0)"


def test_a_recorder_without_states_retires_what_is_over() -> None:
    over = called("gloo:all_reduce", state="scheduled", retired=True)
    assert state_of(program_dumps([[over]] * 2)).ranks[0].pending == ()


def test_the_ranks_without_files_are_not_blamed_if_they_are_most() -> None:
    dumps = program_dumps([[called()]] * 16)
    hang = judge_hang(state_of(dumps, without=range(1, 16)))

    assert hang.confidence < FIRES
    assert "collect the files of all ranks" in hang.remedy
