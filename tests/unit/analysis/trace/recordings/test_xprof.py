"""Traces of XProf with the planes of a TPU and of a processor."""

from __future__ import annotations

import gzip
from collections import Counter
from typing import TYPE_CHECKING

import numpy as np
import pytest

from app.analysis.report.build import analyze
from app.analysis.trace.decode import decode
from app.analysis.trace.metadata import not_replayed_reason
from app.analysis.trace.model import Sizes
from app.errors import InvalidTraceError, PacelineError
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.xplane_files import (
    STARTED_NS,
    US,
    Host,
    Line,
    bytes_of,
    number,
    tpu_hosts,
    varint,
)

if TYPE_CHECKING:
    from app.analysis.trace.model import Trace

ONE = tpu_hosts(hosts=1, slow=2)[0]


def read(body: bytes) -> Trace:
    return decode(body, None, limits=LIMITS).trace


def counts(trace: Trace) -> Counter[tuple[int, str]]:
    return Counter(zip(trace.rank.tolist(), (trace.op_names[op] for op in trace.op), strict=True))


def test_devices_of_a_host_are_ranks_with_steps_collectives_and_computing() -> None:
    trace = read(ONE.body())

    assert trace.meta.sizes == Sizes(dp=4, pp=1)
    assert trace.meta.hosts == dict.fromkeys(range(4), "t1v-n-5f-w-0")
    assert "forward from a backward" in (not_replayed_reason(trace.meta) or "")
    assert set(trace.step.tolist()) == {40, 41, 42, 43, 44}
    assert counts(trace) == {
        (rank, op): 5 * times
        for rank in range(4)
        for op, times in (
            # An asynchronous gather is communication.
            ("cp-send-recv", 1),
            ("grads-reduce-scatter", 1),
            ("forward-compute", 2),
        )
    }
    gathers = trace.op == trace.op_names.index("cp-send-recv")
    first = np.flatnonzero(gathers & (trace.rank == 0))[0]
    # Two instructions mark its start and its end.
    assert trace.start_ns[first] == STARTED_NS + 1_000_000
    assert trace.duration_ns[first] == 102_000


def test_steps_that_a_device_counts_are_those_that_its_host_annotates() -> None:
    host = tpu_hosts(hosts=1)[0]
    for plane in host.planes[1:]:
        steps = plane.lines[0]
        steps.events = [
            (str(place), *event[1:]) for place, event in enumerate(steps.events, start=3)
        ]
    assert set(read(host.body()).step.tolist()) == {40, 41, 42, 43, 44}
    del host.planes[0].lines[0].events[2:]
    assert set(read(host.body()).step.tolist()) == {3, 4, 5, 6, 7}


def test_the_slow_device_comes_last() -> None:
    arrivals = analyze(read(ONE.body())).report.arrivals
    assert arrivals is not None
    assert (arrivals.worst.rank, arrivals.straggles) == (2, True)
    healthy = analyze(read(tpu_hosts(hosts=1, slow=None)[0].body())).report.arrivals
    assert healthy is not None
    assert not healthy.straggles


def test_clocks_go_by_collectives_that_devices_wait_for_where_they_stand() -> None:
    """By the ends of other collectives, a slow device's clock would seem ahead, and it on time."""
    host = Host()
    for device, own in enumerate((10_000, 10_000, 15_000, 10_000)):
        plane = host.plane(f"/device:TPU:{device}")
        ops, steps = plane.line("XLA Ops"), plane.line("Steps")
        for step in range(4):
            at = step * 20_000 * US
            steps.add(str(step), at, 19_000 * US)
            for layer in range(5):
                ops.add(f"all-gather-start.{layer}", at, US)
                done = at + own * US // 5
                ops.add(f"fusion.{layer}", at + US, done - at - US)
                ops.add(f"all-gather-done.{layer}", done, US)
                at = done + US
            ops.add("all-reduce.1", at, (step * 20_000 + 16_000) * US - at)
    arrivals = analyze(read(host.body())).report.arrivals
    assert arrivals is not None
    assert (arrivals.worst.rank, arrivals.worst.last, arrivals.straggles) == (2, 1.0, True)
    assert arrivals.clocks_apart_s == 0


def test_where_all_collectives_are_asynchronous_they_are_matched() -> None:
    host = Host()
    for device in range(2):
        ops = host.plane(f"/device:TPU:{device}").line("XLA Ops")
        ops.add("all-gather-start.1", device * US, US)
        ops.add("all-gather-done.1", 5 * US, US)
    assert counts(read(host.body())) == {(rank, "params-all-gather"): 1 for rank in range(2)}


@pytest.mark.parametrize("compress", [bytes, gzip.compress])
def test_the_trace_for_a_viewer_says_the_same(compress: type[bytes]) -> None:
    planes, events = read(compress(ONE.body())), read(ONE.trace_json())

    assert counts(events) == counts(planes)
    assert events.duration_ns.tolist() == planes.duration_ns.tolist()
    assert (events.start_ns + STARTED_NS).tolist() == planes.start_ns.tolist()


def test_lines_that_are_not_yet_counted_from_the_begin_are_those_that_are() -> None:
    host = tpu_hosts(hosts=1)[0]
    for plane in host.planes:
        for line in plane.lines:
            line.timestamp_ns = STARTED_NS
    assert (
        read(host.body()).start_ns.tolist() == read(tpu_hosts(hosts=1)[0].body()).start_ns.tolist()
    )


def processor(*, annotated: bool = True) -> Host:
    """Return the file of a JAX job on a processor with two devices."""
    host = Host()
    plane = host.plane("/host:CPU")
    python = plane.line("python")
    pools = [plane.line(f"tf_XLAPjRtCpuClient/{pool}") for pool in (5, 6)]
    for step in range(3):
        at = step * 1000 * US
        if annotated:
            python.add("train", at, 900 * US, step_num=10 + step)
        for device, ran in enumerate((100, 160)):
            # Each device may run on either thread.
            pool = pools[(device + step) % 2]
            said: dict[str, int | str] = {
                "hlo_module": "jit_step",
                "run_id": -952595514 + step,
                "device_ordinal": device,
            }
            begin = at + 50 * US
            pool.add("dot.4", begin, ran * US, hlo_op="dot.4", **said)
            pool.add("end: dot.4", begin + ran * US, US)
            start = begin + ran * US
            pool.add("all-reduce.5", start, begin + 170 * US - start, hlo_op="all-reduce.5", **said)
    return host


@pytest.mark.parametrize("annotated", [True, False])
def test_instructions_of_a_processor_are_those_of_its_devices(*, annotated: bool) -> None:
    trace = read(processor(annotated=annotated).body())

    assert trace.meta.sizes == Sizes(dp=2, pp=1)
    assert set(trace.step.tolist()) == ({10, 11, 12} if annotated else {0, 1, 2})
    assert set(counts(trace).values()) == {3}
    arrivals = analyze(trace).report.arrivals
    assert arrivals is not None
    assert arrivals.worst.rank == 1


def test_streams_of_a_gpu_have_kernels() -> None:
    host = Host()
    for device in range(2):
        plane = host.plane(f"/device:GPU:{device}")
        compute, comm = plane.line("Stream #13(Compute)"), plane.line("Stream #20(Collectives)")
        # Lines that a viewer derives from the kernels.
        derived = plane.line("XLA Ops")
        for step in range(2):
            at = step * 1000 * US
            plane.lines[0].add("MemcpyH2D", at, US)
            compute.add("cutlass_gemm", at + US, 100 * US)
            derived.add("dot.1", at + US, 100 * US)
            comm.add("ncclDevKernel_AllReduce_Sum_f32_RING_LL(args)", at + 101 * US, 9 * US)
        modules = plane.line("XLA Modules")
        for step in range(2):
            modules.add("jit_step", step * 1000 * US, 200 * US)
            modules.add("jit_metrics", step * 1000 * US + 300 * US, US)
    trace = read(host.body())
    assert set(trace.step.tolist()) == {0, 1}
    assert counts(trace) == {
        (rank, op): 2 for rank in range(2) for op in ("forward-compute", "grads-reduce-scatter")
    }


def test_collectives_of_neighbors_are_tensor_parallel() -> None:
    host = Host()
    for device in range(4):
        ops = host.plane(f"/device:TPU:{device}").line("XLA Ops")
        ops.add("%ar.1 = f32[] all-reduce(%x), replica_groups=[2,2]<=[4]", 0, US)
        ops.add("%ar.2 = f32[] all-reduce(%x), replica_groups={{0,2},{1,3}}", 2 * US, US)
        ops.add("%cp.1 = f32[] collective-permute(%x), source_target_pairs={{0,1}}", 4 * US, US)
        ops.add("%aa.1 = f32[] all-to-all(%x), replica_groups={{0,1},{2,3}}", 6 * US, US)
    trace = read(host.body())
    assert trace.meta.sizes == Sizes(dp=2, pp=1, tp=2)
    assert counts(trace) == {
        (rank, op): 1
        for rank in range(4)
        for op in ("tp-all-reduce", "grads-reduce-scatter", "cp-send-recv", "ep-all-to-all")
    }


def test_operations_without_an_end_are_named() -> None:
    host = Host()
    ops = host.plane("/device:TPU:0").line("XLA Ops")
    ops.add("all-reduce-start.1", 0, US)
    ops.add("fusion.1", US, US)
    decoded = decode(host.body(), None, limits=LIMITS)
    assert [one.what for one in decoded.unmapped] == ["collectives that do not end in the trace"]


def test_a_trace_without_devices_is_refused_with_what_to_do() -> None:
    host = Host()
    host.plane("/host:CPU").line("python").add("train", 0, US, step_num=1)
    for body in (host.body(), host.trace_json()):
        with pytest.raises(InvalidTraceError, match="start_trace") as caught:
            read(body)
        assert caught.value.stable_code == "trace.no_rows"


@pytest.mark.parametrize(
    ("damaged", "code"),
    [
        (ONE.body()[:-9], "trace.truncated"),
        (ONE.body() + b"\x0b", "trace.corrupt"),
        (ONE.body().replace(b"jit_train", b"jit_\xff\xfe\xfd\xfcn"), "trace.corrupt"),
        (ONE.body() + bytes_of(1, bytes_of(2, "/device:TPU:9") + b"\x1a\x7f"), "trace.corrupt"),
    ],
    ids=["cut", "wire type", "text", "length"],
)
def test_damaged_planes_are_refused(damaged: bytes, code: str) -> None:
    with pytest.raises(PacelineError) as caught:
        read(damaged)
    assert caught.value.stable_code == code


def test_a_time_beyond_all_times_is_refused() -> None:
    host = Host()
    host.plane("/device:TPU:0").lines.append(Line("XLA Ops", (1 << 63) - 1))
    host.planes[0].lines[0].add("fusion", 0, US)
    with pytest.raises(InvalidTraceError) as caught:
        read(host.body())
    assert caught.value.stable_code == "trace.time_overflow"


def test_a_message_over_the_limit_is_refused() -> None:
    entry = number(1, 1) + bytes_of(2, number(1, 1) + bytes_of(2, b"x" * (5 << 20)))
    body = bytes_of(1, number(1, 3) + bytes_of(2, "/device:TPU:0") + bytes_of(4, entry))
    with pytest.raises(InvalidTraceError) as caught:
        read(body)
    assert caught.value.stable_code == "trace.item_too_long"
    assert varint(300) == b"\xac\x02"
