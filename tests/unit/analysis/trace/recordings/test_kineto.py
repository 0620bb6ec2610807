from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.limits import MAX_TIME_NS, Limits
from app.analysis.trace.model import SessionMeta, Sizes, Trace
from app.analysis.trace.unmapped import Unmapped
from app.errors import InvalidMetadataError, InvalidTraceError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, KinetoFile, host_steps

if TYPE_CHECKING:
    from collections.abc import Callable

AT = 4_459_370_929_637_969


def operations(trace: Trace) -> dict[tuple[int, str, int], tuple[int, int]]:
    """Return start and duration of each operation by step, type and microbatch."""
    return {
        (step, trace.op_names[op], mb): (start, duration)
        for step, op, mb, start, duration in zip(
            trace.step.tolist(),
            trace.op.tolist(),
            trace.mb.tolist(),
            trace.start_ns.tolist(),
            trace.duration_ns.tolist(),
            strict=True,
        )
    }


def read(file: KinetoFile, meta: SessionMeta | None = None) -> Trace:
    return decode(file.body(), meta, limits=LIMITS, part=True).trace


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
    found = operations(read(host_steps()))

    # The label covers 0.4 to 15 ms; what it waits for is there at 5.100001 ms.
    assert found[10, "forward-compute", 0] == (BASE_NS + AT + 5_100_001, 9_899_999)


def test_without_steps_of_the_profiler_an_optimizer_ends_a_step() -> None:
    file = host_steps(3)
    file.events = [event for event in file.events if "ProfilerStep" not in event]
    assert {step for step, _, _ in operations(read(file))} == {0, 1, 2}

    file.events = [event for event in file.events if "Optimizer" not in event]
    found = operations(read(file))
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

    found = operations(read(file))

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
        read(file)
    assert caught.value.stable_code == "trace.no_labels"


def test_chunks_are_numbered_by_the_stages_of_the_rank() -> None:
    file = KinetoFile(rank=3)
    file.groups = {"default_pg": [0, 1, 2, 3], "mesh_pp": [1, 3], "mesh_dp": [2, 3]}
    file.add("PP:1F0", AT, 1000)
    file.add("PP:3F0", AT + 2000, 1000)
    file.add("PP:3W0", AT + 4000, 1000)
    trace = read(file)

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


@pytest.mark.parametrize(
    ("groups", "rank", "sizes", "place"),
    [
        ({"default_pg": [0, 1, 2, 3]}, 3, Sizes(dp=1, pp=4), (0, 3)),
        # A dimension of the whole mesh is the default group.
        ({"default_pg": [0, 1], "mesh_dp": [1]}, 1, Sizes(dp=1, pp=2), (0, 1)),
        (
            {
                "PIPELINE_MODEL_PARALLEL_GROUP": [1, 5],
                "DATA_PARALLEL_GROUP": [1, 3],
                "TENSOR_MODEL_PARALLEL_GROUP": [0, 1],
            },
            1,
            Sizes(dp=2, pp=2, tp=2),
            (0, 0),
        ),
        (
            {"mesh_pp": [3, 7], "mesh_dp_replicate": [1, 3], "mesh_dp_shard": [2, 3]},
            3,
            Sizes(dp=4, pp=2),
            (3, 0),
        ),
    ],
)
def test_process_groups_say_where_a_rank_stands(
    groups: dict[str, list[int]], rank: int, sizes: Sizes, place: tuple[int, int]
) -> None:
    file = KinetoFile(rank=rank, world=sizes.world, groups=groups)
    file.add(f"PP:{place[1]}F0", AT, 1000)
    trace = read(file)

    assert trace.meta.sizes == sizes
    assert (trace.dp[0], trace.pp[0]) == place


def test_groups_without_names_need_the_sizes_apart_from_the_file() -> None:
    file = host_steps(groups={"default_pg": [0, 1, 2, 3], "undefined": [0, 2], "other": [2, 3]})
    with pytest.raises(InvalidMetadataError) as caught:
        read(file)
    assert caught.value.stable_code == "metadata.missing"

    trace = read(file, SessionMeta(Sizes(dp=2, pp=2)))
    assert (trace.dp[0], trace.pp[0]) == (0, 1)
    assert trace.meta.hosts == {2: "node-2"}


@pytest.mark.parametrize("config", [None, "none", 3])
def test_a_stage_of_another_number_than_the_rank_needs_the_sizes(config: object) -> None:
    info = {"rank": 1, "world_size": 4, "pg_config": config}
    file = KinetoFile(rank=1, fields={"distributedInfo": info})
    file.add("PP:0F0", AT, 1000)
    with pytest.raises(InvalidMetadataError, match="rank 1 runs stage 0") as caught:
        read(file)
    assert caught.value.stable_code == "metadata.missing"
    trace = read(file, SessionMeta(Sizes(dp=2, pp=2)))
    assert (trace.dp[0], trace.pp[0]) == (1, 0)


@pytest.mark.parametrize(
    "written", [str, lambda ranks: {str(rank): place for place, rank in enumerate(ranks)}]
)
@pytest.mark.parametrize("listed", [True, False], ids=["list", "map"])
def test_ranks_of_groups_may_be_a_text_or_a_map(
    written: Callable[[list[int]], object],
    listed: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    groups = {"default_pg": [0, 1, 2, 3], "mesh_pp": [1, 3], "mesh_dp": [2, 3]}
    config = [
        {"pg_name": str(number), "pg_desc": name, "ranks": written(ranks)}
        for number, (name, ranks) in enumerate(groups.items())
    ]
    said = config if listed else {str(number): one for number, one in enumerate(config)}
    info = {"rank": 3, "world_size": 4, "pg_config": said}
    file = KinetoFile(rank=3, fields={"distributedInfo": info})
    file.add("PP:1F0", AT, 1000)
    trace = read(file)
    assert trace.meta.sizes == Sizes(dp=2, pp=2)
    assert (trace.dp[0], trace.pp[0]) == (1, 1)


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
        assert operations(read(file))[0, op, 0][1] == taken


def test_a_hand_written_loop_labels_its_own_operations() -> None:
    file = KinetoFile(rank=1, world=2, groups={"default_pg": [0, 1]})
    file.add("paceline:fwd:mb=3", AT, 1000)
    file.add("paceline:optimizer", AT + 3000, 500)
    trace = read(file)

    assert trace.meta.sizes == Sizes(dp=2, pp=1)
    assert operations(trace) == {
        (0, "forward-compute", 3): (BASE_NS + AT, 1000),
        (0, "optimizer", -1): (BASE_NS + AT + 3000, 500),
    }


def device_file() -> KinetoFile:
    """Return a file with a device: the kernels come long after what launched them."""
    file = KinetoFile(rank=2)
    groups = {"Process_Group_Name": "3", "Process_Group_Description": "mesh_dp"}
    nccl = "ncclDevKernel_SendRecv(ncclDevKernelArgsStorage<4096ul>)"
    file.add("PP:1RECV_F0", AT, 50_000)
    file.add("cudaLaunchKernelExC", AT + 10_000, 900, cat="cuda_runtime", correlation=1)
    file.add(nccl, AT + 20_000, 4_000_000, cat="kernel", tid=20, correlation=1)
    file.add("PP:1F0", AT + 60_000, 80_000)
    file.add("cudaLaunchKernel", AT + 70_000, 900, cat="cuda_runtime", correlation=2)
    # Launched by autograd's thread; the call of the runtime is not recorded.
    file.add("aten::mm", AT + 80_000, 900, cat="cpu_op", tid=99, External_id=55)
    file.add("gemm", AT + 4_100_000, 1_000_000, cat="kernel", tid=7, correlation=2)
    file.add("gemm", AT + 5_200_000, 300_000, cat="kernel", tid=7, correlation=77, External_id=55)
    for kernel in range(2):
        # Two kernels of one collective.
        file.add(
            "ncclDevKernel_ReduceScatter",
            AT + 6_000_000 + kernel * 100_000,
            90_000,
            cat="kernel",
            tid=21,
            Collective_name="_reduce_scatter_base",
            Seq=4,
            correlation=80,
            **groups,
        )
    file.add("PP:1F1", AT + 150_000, 10_000)
    return file


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
    file.add("PP:(1F0;1B1)OVERLAP_F_B", AT + 81_000_000, 10)
    decoded = decode(file.body(), None, limits=LIMITS)

    assert operations(decoded.trace)[10, "grads-reduce-scatter", -1][1] == 1000
    assert {(one.what, one.count) for one in decoded.unmapped} == {
        ("collectives whose process group is not recorded", 1),
        ("broadcast of the process group checkpoint", 1),
        ("sends and receives outside of an action of the pipeline", 1),
        ("actions that run a forward and a backward at once", 1),
    }


@pytest.mark.parametrize(
    ("event", "code"),
    [
        ("7", "trace.bad_event"),
        ('{"ph":"X","cat":"user_annotation","name":"PP:0F0","dur":1}', "trace.missing_key"),
        ('{"ph":"X","cat":"user_annotation","name":3}', "trace.wrong_type"),
        (
            '{"ph":"X","cat":"user_annotation","name":"PP:0F0","ts":1e999999999,"dur":1}',
            "trace.time_overflow",
        ),
        (
            '{"ph":"X","cat":"kernel","name":"k","ts":1,"args":{"correlation":99999999999999999999}}',
            "trace.integer_overflow",
        ),
        ('{"ph":"X","ts":NaN}', "trace.bad_json"),
        ('{"ph":"X" "ts"}', "trace.bad_json"),
        (f'{{"ph":"X","ts":{"9" * 30}e999999999999999999}}', "trace.bad_json"),
    ],
)
def test_a_fault_has_the_place_of_its_event(event: str, code: str) -> None:
    file = host_steps(1)
    place = len(file.events)
    file.events.append(event)

    with pytest.raises(InvalidTraceError) as caught:
        read(file)
    assert caught.value.stable_code == code
    assert caught.value.faults[0].row == place


def test_a_rank_that_is_not_named_is_refused_with_the_remedy() -> None:
    file = host_steps(1, fields={"distributedInfo": {}})
    with pytest.raises(InvalidTraceError, match="init_process_group") as caught:
        read(file)
    assert caught.value.stable_code == "trace.unknown_rank"


def test_a_truncated_file_is_said_to_be_so() -> None:
    body = host_steps(1).body()
    with pytest.raises(InvalidTraceError) as caught:
        decode(body[: len(body) // 2], None, limits=LIMITS)
    assert caught.value.stable_code == "trace.truncated"


def test_fields_behind_the_events_count_as_well() -> None:
    document = json.loads(host_steps(1).body())
    info = document.pop("distributedInfo")
    body = json.dumps({**document, "distributedInfo": info}).encode()

    assert decode(body, None, limits=Limits()).trace.meta.sizes == Sizes(dp=2, pp=2)
