"""Databases of Nsight Systems with the processes of all ranks of a node."""

from __future__ import annotations

import gzip
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.model import SessionMeta, Sizes
from app.cli.convert import read_recordings
from app.errors import InvalidTraceError
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training, Writer
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import operations
from tests.unit.analysis.trace.recordings.test_nsys import KERNELS, RANGES, SCHEMA, database

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

MS = 1_000_000
GEMM, ALL_REDUCE, LAUNCH, WAIT = 1, 2, 3, 4
NAMES = {
    GEMM: "gemm",
    ALL_REDUCE: "ncclDevKernel_AllReduce_Sum_f32_RING_LL",
    LAUNCH: "cudaLaunchKernel",
    WAIT: "cudaDeviceSynchronize",
}

COPIES = """
CREATE TABLE CUPTI_ACTIVITY_KIND_MEMCPY (start INTEGER NOT NULL, end INTEGER NOT NULL,
    deviceId INTEGER NOT NULL, contextId INTEGER NOT NULL, streamId INTEGER NOT NULL,
    correlationId INTEGER, globalPid INTEGER, bytes INTEGER NOT NULL, copyKind INTEGER NOT NULL);
"""


class Node:
    """A database of a node, filled by process."""

    def __init__(self, path: Path) -> None:
        self.made = sqlite3.connect(path)
        self.made.executescript(SCHEMA + COPIES)
        self.made.executemany("INSERT INTO StringIds VALUES (?, ?)", NAMES.items())
        self.correlation = 0

    def range(self, thread: int, text: str, start: int, end: int) -> None:
        self.made.execute(
            "INSERT INTO NVTX_EVENTS VALUES (?, ?, 59, NULL, NULL, NULL, ?, ?, NULL, NULL, 0)",
            (start, end, text, thread),
        )

    def call(self, thread: int, name: int, start: int, end: int, correlation: int) -> None:
        self.made.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_RUNTIME VALUES (?, ?, 0, ?, ?, ?, 0, 0)",
            (start, end, thread, correlation, name),
        )

    def kernel(  # noqa: PLR0917 - columns of a kernel
        self, thread: int, device: int, stream: int, name: int, start: int, end: int, number: int
    ) -> None:
        self.made.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_KERNEL VALUES (?, ?, ?, 1, ?, ?, ?, ?, ?)",
            (start, end, device, stream, number, thread & ~0xFFFFFF, name, name),
        )

    def copy(  # noqa: PLR0917 - columns of a copy
        self, thread: int, device: int, stream: int, start: int, end: int, number: int
    ) -> None:
        self.made.execute(
            "INSERT INTO CUPTI_ACTIVITY_KIND_MEMCPY VALUES (?, ?, ?, 1, ?, ?, ?, 0, 1)",
            (start, end, device, stream, number, thread & ~0xFFFFFF),
        )

    def close(self) -> None:
        self.made.commit()
        self.made.close()


def thread_of(process: int) -> int:
    return (1 << 48) | (process << 24) | 77


def node(
    path: Path, processes: Sequence[int], devices: Sequence[int], slow: int, steps: int = 3
) -> Path:
    """Write a node whose ranks label their ranges; the process at index `slow` computes longer."""
    made = Node(path)
    for place, (process, device) in enumerate(zip(processes, devices, strict=True)):
        thread = thread_of(process)
        for step in range(steps):
            at, number = step * 100 * MS, step * 10
            cost = 26 * MS if place == slow else 20 * MS
            for part, (label, name, begin, end) in enumerate(
                (
                    ("paceline:fwd:mb=0", GEMM, at, at + cost),
                    ("paceline:bwd:mb=0", GEMM, at + cost, at + 2 * cost),
                    ("paceline:grads-reduce-scatter", ALL_REDUCE, at + 2 * cost, at + 60 * MS),
                    ("paceline:optimizer", GEMM, at + 60 * MS, at + 63 * MS),
                )
            ):
                launch = at + part * MS
                made.range(thread, label, launch, launch + MS // 2)
                made.call(thread, LAUNCH, launch + 1000, launch + 2000, number + part)
                made.kernel(thread, device, 7, name, begin, end, number + part)
    made.close()
    return path


def forwards(trace: Any) -> dict[int, set[int]]:  # noqa: ANN401 - a trace
    """Return the durations of each rank's forwards in ms."""
    mine = trace.op == trace.op_names.index("forward-compute")
    found: dict[int, set[int]] = {}
    for rank, duration in zip(
        trace.rank[mine].tolist(), trace.duration_ns[mine].tolist(), strict=True
    ):
        found.setdefault(rank, set()).add(duration // MS)
    return found


@pytest.mark.parametrize(
    ("processes", "devices", "slow", "rank"),
    [
        ([100, 101, 102, 103], [0, 1, 2, 3], 2, 2),
        # The order of devices comes before that of processes.
        ([103, 102, 101, 100], [0, 1, 2, 3], 1, 1),
        # Each process sees its own device as the first.
        ([103, 100, 101, 102], [0, 0, 0, 0], 0, 3),
    ],
)
def test_each_process_is_a_rank(
    tmp_path: Path, processes: list[int], devices: list[int], slow: int, rank: int
) -> None:
    path = node(tmp_path / "profile.sqlite", processes, devices, slow)
    meta = SessionMeta(Sizes(dp=4, pp=1))
    decoded = decode(path, meta, limits=LIMITS, local=True)
    assert forwards(decoded.trace) == {r: {26 if r == rank else 20} for r in range(4)}
    assert sorted(set(decoded.trace.dp.tolist())) == [0, 1, 2, 3]


def test_a_process_that_launches_nothing_is_no_rank(tmp_path: Path) -> None:
    path = node(tmp_path / "rank0.sqlite", [100], [0], slow=0)
    with closing(sqlite3.connect(path)) as made, made:
        made.execute(
            "INSERT INTO NVTX_EVENTS SELECT start, end, eventType, rangeId, category, color, text, "
            "globalTid + (5 << 24), endGlobalTid, textId, domainId FROM NVTX_EVENTS"
        )
    decoded = decode(path, SessionMeta(Sizes(dp=1, pp=1)), limits=LIMITS, local=True)
    assert forwards(decoded.trace) == {0: {26}}


def test_files_of_two_nodes_are_numbered_on(tmp_path: Path) -> None:
    for number, slow in ((0, 9), (1, 1)):
        node(tmp_path / f"node{number}.sqlite", [100, 101], [0, 1], slow)
    (tmp_path / "meta.yaml").write_text("{dp: 4, pp: 1}")
    recorded = read_recordings([tmp_path], None, None)
    assert forwards(recorded.trace) == {0: {20}, 1: {20}, 2: {20}, 3: {26}}


def test_kernels_of_unknown_processes_are_not_guessed(tmp_path: Path) -> None:
    path = node(tmp_path / "profile.sqlite", [100, 101], [0, 1], slow=0)
    with closing(sqlite3.connect(path)) as made, made:
        made.execute("UPDATE CUPTI_ACTIVITY_KIND_KERNEL SET globalPid = NULL")
    with pytest.raises(InvalidTraceError, match="kernels name none of the 2 processes") as caught:
        decode(path, SessionMeta(Sizes(dp=2, pp=1)), limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.unknown_rank"


def emitted(traces: Path, path: Path) -> Path:
    """Write the profiler files of a node's ranks as a database recorded in ``emit_nvtx``."""
    made = Node(path)
    ids: dict[str, int] = {}
    recorded = {"cpu_op", "user_annotation", "cuda_runtime", "kernel", "gpu_memcpy"}
    for rank, file in enumerate(sorted(traces.iterdir())):
        events = json.loads(gzip.decompress(file.read_bytes()))["traceEvents"]
        for number, event in enumerate(one for one in events if one.get("cat") in recorded):
            start = round(event["ts"] * 1000)
            end, args = start + round(event["dur"] * 1000), event.get("args", {})
            category, thread = event["cat"], (1 << 48) | (100 + rank << 24) | 1000 + event["tid"]
            if category in {"cpu_op", "user_annotation"}:
                made.range(thread, f"{event['name']}, op_id = {number}", start, end)
            elif category == "cuda_runtime":
                made.call(thread, LAUNCH, start, end, args["correlation"])
            elif category == "gpu_memcpy":
                made.copy(thread, rank, args["stream"], start, end, args["correlation"])
            else:
                name = ids.setdefault(event["name"], 100 + len(ids))
                correlation = args["correlation"]
                made.kernel(thread, rank, args["stream"], name, start, end, correlation)
    made.made.executemany("INSERT INTO StringIds VALUES (?, ?)", [(i, n) for n, i in ids.items()])
    made.close()
    return path


@pytest.mark.parametrize("kind", [Kind.DDP, Kind.FSDP2])
def test_ranges_of_pytorch_are_read_like_its_profiler(tmp_path: Path, kind: Kind) -> None:
    training = Training(kind, layers=3, kernels=2, steps=4, ranks=2)
    (tmp_path / "traces").mkdir()
    write_training(training, Style(Writer.OLD), tmp_path / "traces")
    wanted = read_recordings([tmp_path / "traces"], None, None).trace
    path = emitted(tmp_path / "traces", tmp_path / "profile.sqlite")
    found = decode(path, None, limits=LIMITS, local=True).trace
    assert found.rank.tolist() == wanted.rank.tolist()
    assert found.op.tolist() == wanted.op.tolist()
    assert abs(found.duration_ns - wanted.duration_ns).max() <= 1000


def test_a_recording_of_part_of_a_step_says_what_is_missing(tmp_path: Path) -> None:
    made = Node(tmp_path / "rank0.sqlite")
    thread = thread_of(100)
    for call in range(3):
        at = call * 40 * MS
        made.range(thread, f"FSDP::pre_forward (blocks.{call}), op_id = {call}", at, at + 12 * MS)
        made.range(thread, f"aten::addmm, seq = {call}, op_id = 9{call}", at, at + MS)
        made.call(thread, LAUNCH, at, at + 1000, call)
        made.call(thread, WAIT, at + 12 * MS, at + 40 * MS, 100 + call)
        made.kernel(thread, 0, 7, GEMM, at + 2 * MS, at + 12 * MS, call)
    made.close()
    with pytest.raises(InvalidTraceError) as caught:
        decode(tmp_path / "rank0.sqlite", None, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.no_backward"
    message = caught.value.message
    assert "emit_nvtx" not in message
    assert "of a training (FSDP::pre_forward), and no whole step is in it" in message
    assert "its longest kernels are gemm (3 in 30 ms)" in message
    assert "30 ms (the host is in cudaDeviceSynchronize)" in message


def test_an_inference_in_emit_nvtx_is_called_so(tmp_path: Path) -> None:
    made = Node(tmp_path / "rank0.sqlite")
    thread = thread_of(100)
    for call in range(3):
        made.range(thread, f"aten::addmm, op_id = {call}", call * 40 * MS, call * 40 * MS + MS)
        made.call(thread, LAUNCH, call * 40 * MS, call * 40 * MS + 1000, call)
        made.kernel(thread, 0, 7, GEMM, call * 40 * MS + MS, call * 40 * MS + 11 * MS, call)
    made.close()
    with pytest.raises(InvalidTraceError, match="forwards only") as caught:
        decode(tmp_path / "rank0.sqlite", None, limits=LIMITS, local=True)
    assert caught.value.stable_code == "trace.no_backward"
    assert "emit_nvtx" not in caught.value.message


def test_a_process_is_described_without_the_others(tmp_path: Path) -> None:
    made = Node(tmp_path / "node.sqlite")
    for place in range(2):
        thread = thread_of(100 + place)
        for call in range(2):
            at = call * 40 * MS
            made.range(thread, f"aten::addmm, op_id = {call}", at, at + MS)
            made.call(thread, LAUNCH, at, at + 1000, call)
            name = (GEMM, ALL_REDUCE)[place]
            made.kernel(thread, place, 7, name, at + MS, at + 11 * MS, call)
            made.call(thread, (WAIT, LAUNCH)[place], at + 11 * MS, at + 40 * MS, 100 + call)
    made.close()
    with pytest.raises(InvalidTraceError, match="kernels are gemm") as caught:
        decode(tmp_path / "node.sqlite", None, limits=LIMITS, local=True)
    assert "ncclDevKernel" not in caught.value.message
    assert "30 ms (the host is in cudaDeviceSynchronize)" in caught.value.message


def test_ranges_of_a_program_are_named(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.sqlite", [("load", 1, 2), ("load", 3, 4), ("infer", 5, 6)])
    with pytest.raises(InvalidTraceError, match=r"such as 'load' \(2\), 'infer' \(1\)"):
        decode(path, None, limits=LIMITS, local=True)


def test_kernels_without_ranges_are_told(tmp_path: Path) -> None:
    path = database(tmp_path / "rank0.sqlite", [("load", 1, 2)], KERNELS)
    with pytest.raises(InvalidTraceError, match="events of a device") as caught:
        decode(path, None, limits=LIMITS, local=True)
    assert "gemm (3 in" in caught.value.message


def test_a_rank_of_a_name_is_that_of_a_file_with_one_process(tmp_path: Path) -> None:
    path = database(tmp_path / "rank3.sqlite", RANGES, KERNELS)
    decoded = decode(path, SessionMeta(Sizes(dp=2, pp=2)), limits=LIMITS, local=True)
    assert set(decoded.trace.rank.tolist()) == {3}
    assert len(operations(decoded.trace)) == 3
