"""Actions that contain a forward and a backward pass, and repeated forward passes."""

from __future__ import annotations

import pytest

from app.analysis.trace.decode import decode
from app.analysis.trace.formats.kind import Decoded
from app.analysis.trace.limits import Limits
from tests.unit.analysis.trace.recordings.kineto_files import BASE_NS, KinetoFile

AT = 4_459_370_929_637_000
US, MS = 1_000, 1_000_000
OWN, AUTOGRAD = 7, 8


def read(file: KinetoFile) -> Decoded:
    return decode(file.body(), None, limits=Limits(), part=True)


def operations(decoded: Decoded) -> dict[tuple[str, int], tuple[int, int]]:
    """Return start and end of each operation by type and microbatch, in ms of the file."""
    trace = decoded.trace
    return {
        (trace.op_names[op], mb): ((start - BASE_NS - AT) / MS, (start - BASE_NS - AT + took) / MS)
        for op, mb, start, took in zip(
            trace.op.tolist(),
            trace.mb.tolist(),
            trace.start_ns.tolist(),
            trace.duration_ns.tolist(),
            strict=True,
        )
    }


def launch(  # noqa: PLR0917 - where and when
    file: KinetoFile, host_us: int, thread: int, number: int, begin_ms: int, end_ms: int
) -> None:
    """Launch a kernel from a thread."""
    host = AT + host_us * US
    file.add("cudaLaunchKernel", host, US, cat="cuda_runtime", tid=thread, correlation=number)
    took = (end_ms - begin_ms) * MS
    file.add("gemm", AT + begin_ms * MS, took, cat="kernel", tid=20, correlation=number)


def overlapped() -> KinetoFile:
    """Return an overlapped action, inside of which another action receives."""
    file = KinetoFile()
    file.add("ProfilerStep#3", AT, 100 * MS, tid=OWN)
    file.add("PP:(1F1;1B0)OVERLAP_F_B", AT + 10 * US, 500 * US, tid=OWN)
    file.add("PP:1RECV_B0", AT + 40 * US, 20 * US, tid=OWN)
    return file


def test_threads_tell_a_forward_from_a_backward() -> None:
    file = overlapped()
    launch(file, 20, OWN, 1, 1, 3)
    launch(file, 30, OWN, 2, 3, 5)
    launch(file, 100, AUTOGRAD, 3, 6, 9)
    launch(file, 110, AUTOGRAD, 4, 9, 12)

    decoded = read(file)

    assert operations(decoded) == {
        ("forward-compute", 1): (1, 5),
        ("backward-compute", 0): (6, 12),
    }


def test_a_forward_and_a_backward_layer_by_layer_share_the_time() -> None:
    file = overlapped()
    for layer in range(2):
        launch(file, 20 + 60 * layer, OWN, 2 * layer, 1 + 9 * layer, 4 + 9 * layer)
        launch(file, 30 + 60 * layer, AUTOGRAD, 2 * layer + 1, 4 + 9 * layer, 10 + 9 * layer)

    decoded = read(file)

    assert operations(decoded) == {
        ("forward-compute", 1): (1, 7),
        ("backward-compute", 0): (7, 19),
    }


def test_without_a_device_autograd_tells_them_apart() -> None:
    file = overlapped()
    file.add("aten::mm", AT + 70 * US, 100 * US, cat="cpu_op", tid=OWN)
    for node in range(2):
        name = "autograd::engine::evaluate_function: MmBackward0"
        file.add(name, AT + (200 + 120 * node) * US, 100 * US, cat="cpu_op", tid=OWN)

    decoded = read(file)

    assert operations(decoded) == {
        ("forward-compute", 1): (0.01, 0.17),
        ("backward-compute", 0): (0.2, 0.42),
    }


def test_what_nothing_tells_apart_is_counted_once() -> None:
    file = overlapped()
    file.add("PP:1F0", AT + MS, MS, tid=OWN)

    decoded = read(file)

    assert ("actions that run a forward and a backward at once", 1) in {
        (lost.what, lost.count) for lost in decoded.unmapped
    }
    assert operations(decoded) == {("forward-compute", 0): (1, 2)}


def test_names_of_communications_are_no_actions() -> None:
    file = KinetoFile()
    file.add("ProfilerStep#3", AT, 100 * MS)
    file.add("PP:1F0", AT + MS, MS)
    file.add("PP::fwd_send (stage 1)", AT + 3 * MS, MS)

    assert not read(file).unmapped


@pytest.mark.parametrize("name", ["PP:1F{}", "paceline:fwd:mb={}"])
def test_of_a_forward_that_was_tried_again_the_last_try_counts(name: str) -> None:
    file = KinetoFile()
    file.add("ProfilerStep#3", AT, 100 * MS)
    file.add(name.format(0), AT + MS, MS)
    file.add(name.format(1), AT + 2 * MS, MS)
    # The forward pass ran out of memory, and was repeated after emptying the cache.
    file.add(name.format(1), AT + 5 * MS, 2 * MS)

    decoded = read(file)

    assert operations(decoded) == {
        ("forward-compute", 0): (1, 2),
        ("forward-compute", 1): (5, 7),
    }
    [lost] = decoded.unmapped
    assert (lost.what, lost.count) == ("forwards that were tried again", 1)
