from __future__ import annotations

import gzip
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import MAX_TIME_NS
from app.analysis.trace.metadata import Unmapped
from app.analysis.trace.model import Sizes
from app.errors import InvalidTraceError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import (
    AT,
    BASE_NS,
    KinetoFile,
    device_file,
    host_steps,
    operations,
    read_trace,
)

if TYPE_CHECKING:
    from collections.abc import Callable


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_actions_of_the_pipeline_are_operations_to_the_nanosecond(
    compress: Callable[[bytes], bytes],
) -> None:
    decoded = decode(compress(host_steps().body()), None, limits=LIMITS)
    trace, found = decoded.trace, operations(decoded.trace)

    assert decoded.trace_format == "kineto"
    assert trace.meta.sizes == Sizes(dp=2, pp=2)
    assert trace.meta.hosts == {2: "node-2"}
    assert set(trace.rank.tolist()) == {2}
    assert (set(trace.dp.tolist()), set(trace.pp.tolist())) == ({0}, {1})
    start = BASE_NS + AT
    assert found[10, "forward-recv", 0] == (start + 100_001, 5_000_000)
    assert found[10, "backward-compute", 0] == (start + 15_000_003, 20_000_004)
    assert found[10, "backward-send", 0] == (start + 36_100_000, 700_000)
    assert found[11, "optimizer", -1] == (start + 185_000_000, 1_000_000)
    assert len(found) == 2 * (2 * 4 + 1)
    assert decoded.unmapped == ()


def test_the_wait_for_a_receive_is_no_computation() -> None:
    found = operations(read_trace(host_steps()))

    # The label covers 0.4 to 15 ms, but its input arrives at 5.100001 ms.
    assert found[10, "forward-compute", 0] == (BASE_NS + AT + 5_100_001, 9_899_999)


def test_without_steps_of_the_profiler_an_optimizer_ends_a_step() -> None:
    file = host_steps(3)
    file.events = [event for event in file.events if "ProfilerStep" not in event]
    assert {step for step, _, _ in operations(read_trace(file))} == {0, 1, 2}

    file.events = [event for event in file.events if "Optimizer" not in event]
    found = operations(read_trace(file))
    assert {step for step, _, _ in found} == {0, 1, 2}
    assert found[1, "forward-recv", 0][0] == BASE_NS + AT + 100_100_001


@pytest.mark.parametrize(
    ("name", "op"),
    [
        ("enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__", "data-loading"),
        ("paceline:data-loading", "data-loading"),
        ("paceline:checkpoint", "checkpoint"),
        ("paceline:evaluation", "evaluation"),
    ],
)
def test_ranges_of_what_is_done_between_steps_are_operations(name: str, op: str) -> None:
    file = host_steps()
    file.add(name, AT + 40_000_000, 12_500_000)

    found = operations(read_trace(file))

    assert found[10, op, -1] == (BASE_NS + AT + 40_000_000, 12_500_000)


def test_operations_before_the_first_step_are_counted() -> None:
    file = host_steps(1)
    file.add("PP:1F7", AT - 50_000_000, 1_000_000)

    assert decode(file.body(), None, limits=LIMITS).unmapped == (
        Unmapped("operations before the first step of the profiler", 1),
    )


def test_what_is_not_labelled_is_refused_with_the_remedy() -> None:
    file = KinetoFile()
    file.add("Forward 0", AT, 1000)
    file.add("aten::mm", AT, 1000, cat="cpu_op", External_id=3)

    with pytest.raises(InvalidTraceError, match=r"Record with paceline_client\.torch") as caught:
        read_trace(file)
    assert caught.value.stable_code == "trace.no_labels"


def test_chunks_are_numbered_by_the_stages_of_the_rank() -> None:
    file = KinetoFile(rank=3)
    file.groups = {"default_pg": [0, 1, 2, 3], "mesh_pp": [1, 3], "mesh_dp": [2, 3]}
    file.add("PP:1F0", AT, 1000)
    file.add("PP:3F0", AT + 2000, 1000)
    file.add("PP:3W0", AT + 4000, 1000)
    trace = read_trace(file)

    assert trace.meta.sizes == Sizes(dp=2, pp=2, vpp=2)
    assert (set(trace.dp.tolist()), set(trace.pp.tolist())) == ({1}, {1})
    assert sorted(zip(trace.op.tolist(), trace.mc.tolist(), strict=True)) == sorted(
        (trace.op_names.index(op), mc)
        for op, mc in (
            ("forward-compute", 0),
            ("forward-compute", 1),
            ("backward-wgrad-compute", 1),
        )
    )


@pytest.mark.parametrize(("correlation", "op"), [(1, "forward-recv"), (2, "forward-compute")])
def test_a_kernel_of_a_negative_duration_or_of_centuries_is_its_operations(
    correlation: int, op: str
) -> None:
    broken = f'"correlation": {correlation}'
    file = device_file()
    place = next(
        place
        for place, event in enumerate(file.events)
        if '"cat":"kernel"' in event and broken in event
    )
    begin, rest = file.events[place].split('"dur":')
    for duration, taken in (("-5.000", -5000), ("7447680000000000.0", MAX_TIME_NS)):
        file.events[place] = f'{begin}"dur":{duration},{rest.split(",", 1)[1]}'
        assert operations(read_trace(file))[0, op, 0][1] == taken


def test_a_hand_written_loop_labels_its_own_operations() -> None:
    file = KinetoFile(rank=1, world=2, groups={"default_pg": [0, 1]})
    file.add("paceline:fwd:mb=3", AT, 1000)
    file.add("paceline:optimizer", AT + 3000, 500)
    trace = read_trace(file)

    assert trace.meta.sizes == Sizes(dp=2, pp=1)
    assert operations(trace) == {
        (0, "forward-compute", 3): (BASE_NS + AT, 1000),
        (0, "optimizer", -1): (BASE_NS + AT + 3000, 500),
    }


def test_kernels_are_joined_to_the_action_that_launched_them() -> None:
    decoded = decode(device_file().body(), None, limits=LIMITS)

    assert operations(decoded.trace) == {
        (0, "forward-recv", 0): (BASE_NS + AT + 20_000, 4_000_000),
        (0, "forward-compute", 0): (BASE_NS + AT + 4_100_000, 1_400_000),
        (0, "grads-reduce-scatter", -1): (BASE_NS + AT + 6_000_000, 190_000),
    }
    [lost] = decoded.unmapped
    assert (lost.what, lost.count) == ("computations without a kernel", 1)
    assert "ProfilerActivity.CUDA" in (lost.remedy or "")


@pytest.mark.parametrize(
    ("group", "collective", "op"),
    [
        ("mesh_dp", "_allgather_base", "params-all-gather"),
        ("TENSOR_MODEL_PARALLEL_GROUP", "allreduce", "tp-all-reduce"),
        ("mesh_cp", "_allgather_base", "cp-all-gather"),
        ("CONTEXT_PARALLEL_GROUP", "_reduce_scatter_base", "cp-reduce-scatter"),
        ("mesh_cp", "all_to_allv", "cp-all-to-all"),
        ("mesh_cp", "coalesced", "cp-send-recv"),
        ("CONTEXT_PARALLEL_GROUP", "send", "cp-send-recv"),
    ],
)
def test_a_collective_is_what_its_group_shares_out(group: str, collective: str, op: str) -> None:
    file = device_file()
    file.add(
        "ncclDevKernel_SendRecv",
        AT + 7_000_000,
        90_000,
        cat="kernel",
        tid=22,
        Collective_name=collective,
        Process_Group_Name="7",
        Process_Group_Description=group,
        Seq=9,
        correlation=81,
    )
    decoded = decode(file.body(), None, limits=LIMITS)
    assert operations(decoded.trace)[0, op, -1][1] == 90_000


def test_collectives_that_no_group_names_are_counted() -> None:
    file = host_steps(1)
    for name, args in (
        ("gloo:all_reduce", {}),
        ("gloo:all_reduce", {"Process_Group_Description": "mesh_dp"}),
        ("gloo:broadcast", {"Process_Group_Description": "checkpoint"}),
        ("gloo:send", {}),
    ):
        file.add(name, AT + 80_000_000, 1000, tid=9, **args)
    file.add("PP:(1F8;1B9)OVERLAP_F_B", AT + 81_000_000, 10)
    decoded = decode(file.body(), None, limits=LIMITS)

    assert operations(decoded.trace)[10, "grads-reduce-scatter", -1][1] == 1000
    assert {(one.what, one.count) for one in decoded.unmapped} == {
        ("collectives whose process group is not recorded", 1),
        ("broadcast of the process group checkpoint", 1),
        ("sends and receives outside of an action of the pipeline", 1),
        ("actions that run a forward and a backward at once", 1),
    }
