"""Refusals of recordings without training steps say what the recordings are and hold."""

from __future__ import annotations

import gzip
import json
import re
from typing import TYPE_CHECKING

import pytest

from app.analysis.trace.decode import decode
from app.cli.convert import read_recordings
from app.errors import InvalidTraceError
from tests.support.trainings.files import write_training
from tests.support.trainings.job import Kind, Style, Training, Writer
from tests.unit.analysis.trace.bodies import LIMITS
from tests.unit.analysis.trace.recordings.kineto_files import AT, KinetoFile

if TYPE_CHECKING:
    from pathlib import Path

MS = 1_000_000
MANY = 12_000  # events that are read as columns


def inference(calls: int = 4, *, padding: int = 0) -> KinetoFile:
    """Return forwards of 10 ms on a device, with gaps of 30 ms in which the host synchronizes."""
    file = KinetoFile(rank=0, world=1, groups={})
    for call in range(calls):
        at = AT + call * 40 * MS
        launched = {"correlation": call, "External_id": call}
        file.add("nn.Module: Block_0", at, 39 * MS, cat="python_function")
        file.add("aten::linear", at, MS, cat="cpu_op", External_id=call)
        file.add("cudaLaunchKernel", at + 1000, 5000, cat="cuda_runtime", **launched)
        name = "void gemm_kernel<float, 128>(float*)" if call % 2 else "void gemm_kernel<half>()"
        file.add(name, at + 2 * MS, 10 * MS, cat="kernel", tid=100, **launched)
        file.add("cudaStreamSynchronize", at + 2 * MS, 38 * MS, cat="cuda_runtime")
        for number in range(padding):
            # Operators within the first one, as of a deep model.
            begin = at + 10 * number
            file.add("aten::view", begin, 5, cat="cpu_op", External_id=9000 + number)
    return file


def refusal(file: KinetoFile) -> InvalidTraceError:
    with pytest.raises(InvalidTraceError) as caught:
        decode(file.body(), None, limits=LIMITS)
    return caught.value


@pytest.mark.parametrize("padding", [0, MANY])
def test_the_refusal_of_inference_names_its_kernels_and_gaps(padding: int) -> None:
    error = refusal(inference(padding=padding))
    assert error.stable_code == "trace.no_backward"
    assert "forwards only" in error.message
    # 4 kernels of 10 ms in 130 ms, with three gaps of 30 ms.
    assert "In 130 ms the device is busy 31\N{NO-BREAK SPACE}% and idle 69" in error.message
    assert "its longest kernels are gemm_kernel (4 in 40 ms)" in error.message
    assert error.message.count("30 ms (the host is in cudaStreamSynchronize)") == 3
    assert "record whole steps" in error.message
    assert "Schedule1F1B" not in error.message


def test_inference_on_a_processor_shows_its_operators() -> None:
    file = KinetoFile(rank=0, world=1, groups={})
    for call in range(3):
        file.add("aten::mm", AT + call * 20 * MS, 5 * MS, cat="cpu_op", External_id=call)
    error = refusal(file)
    assert error.stable_code == "trace.no_backward"
    assert "In 45 ms the host is busy 33" in error.message
    assert "its longest operators are aten::mm (3 in 15 ms)" in error.message
    assert "its longest gaps are 15 ms, 15 ms." in error.message


def test_events_of_a_device_alone_need_those_of_the_host() -> None:
    file = KinetoFile(rank=0, world=1, groups={})
    for call in range(3):
        begin = AT + call * 20 * MS
        file.add("hipLaunchKernel", begin + 6 * MS, 14 * MS, cat="cuda_runtime", correlation=call)
        file.add("gemm", begin, 5 * MS, cat="kernel", tid=100, correlation=call)
    error = refusal(file)
    assert error.stable_code == "trace.no_labels"
    assert "events of a device and no operators of the host" in error.message
    assert "15 ms (the host is in hipLaunchKernel)" in error.message
    assert "activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]" in error.message


def pipeline() -> KinetoFile:
    """Return forwards whose results are sent by kernels."""
    file = inference()
    for call in range(4):
        at = AT + call * 40 * MS + 13 * MS
        file.add("ncclDevKernel_SendRecv()", at, MS, cat="kernel", tid=101, correlation=100 + call)
    return file


def test_a_stage_of_a_pipeline_of_inference_is_refused_as_inference() -> None:
    assert refusal(pipeline()).stable_code == "trace.no_backward"
    file = pipeline()
    for call in range(4):
        at = AT + call * 40 * MS + 12 * MS
        file.add("c10d::send", at, MS, cat="cpu_op", External_id=200 + call)
        file.add("gloo:send", at, MS, cat="cpu_op", External_id=300 + call)
    error = refusal(file)
    assert error.stable_code == "trace.no_backward"
    assert "forwards only" in error.message


def test_transfers_of_a_pipeline_are_named_as_such() -> None:
    file = pipeline()
    node = "autograd::engine::evaluate_function: MulBackward0"
    file.add(node, AT + 39 * MS, 1000, cat="cpu_op", External_id=99)
    error = refusal(file)
    assert error.stable_code == "trace.no_labels"
    assert "its sends and receives (4) are those of a stage of a pipeline" in error.message
    assert "paceline_client.torch.attach" in error.message


def test_exchanged_tokens_make_no_pipeline(tmp_path: Path) -> None:
    training = Training(Kind.DDP, layers=3, kernels=2, steps=6, ranks=2)
    write_training(training, Style(), tmp_path)
    path = min(tmp_path.iterdir())
    said = json.loads(gzip.decompress(path.read_bytes()))
    kernels = [one for one in said["traceEvents"] if one.get("cat") == "kernel"]
    calls = [one for one in said["traceEvents"] if one.get("cat") == "cpu_op"]
    # NCCL exchanges tokens by its send-receive kernel, also after the range of the all-to-all.
    for number in range(3):
        args = {"stream": 30, "correlation": 900_000 + number}
        said["traceEvents"].append(
            {**kernels[number], "name": "ncclDevKernel_SendRecv()", "args": args}
        )
        said["traceEvents"].append({**calls[number], "name": "nccl:all_to_all", "args": {}})
    decoded = decode(json.dumps(said).encode(), None, limits=LIMITS)
    assert "backward-compute" in {decoded.trace.op_names[op] for op in decoded.trace.op.tolist()}


def test_a_part_of_a_training_step_is_not_called_inference() -> None:
    file = inference()
    file.add("FSDP::pre_forward (blocks.0)", AT, 39 * MS, cat="cpu_op")
    error = refusal(file)
    assert error.stable_code == "trace.no_backward"
    assert "of a training (FSDP::pre_forward), and no whole step is in it" in error.message
    assert "inference" not in error.message


_NODE = re.compile("autograd::engine::evaluate_function: ")


def as_of_1_8(document: dict[str, object]) -> dict[str, object]:
    """Return a file as PyTorch 1.8 writes it: other categories, and operators of nodes only."""
    categories = {
        "cpu_op": "Operator",
        "user_annotation": "Operator",
        "kernel": "Kernel",
        "cuda_runtime": "Runtime",
        "gpu_memcpy": "Memcpy",
        "gpu_memset": "Memset",
    }
    events = []
    raw = document["traceEvents"]
    assert isinstance(raw, list)
    for event in raw:
        category = event.get("cat")
        # Whole ranges of nodes become the operators of the nodes.
        name = _NODE.sub("", str(event.get("name")))
        thread = event.get("tid")
        tid = f"{thread}" if category in {"cpu_op", "user_annotation"} else thread
        events.append(
            {**event, "cat": categories.get(category, category), "name": name, "tid": tid}
        )
    return {"schemaVersion": 1, "traceEvents": events}


@pytest.mark.parametrize("kind", [Kind.DDP, Kind.FSDP1])
def test_files_of_pytorch_1_8_are_read_like_later_ones(kind: Kind, tmp_path: Path) -> None:
    training = Training(kind, layers=3, kernels=2, steps=4, ranks=2)
    write_training(training, Style(Writer.OLD), tmp_path)
    wanted = read_recordings([tmp_path], None, None).trace
    for path in tmp_path.iterdir():
        said = json.loads(gzip.decompress(path.read_bytes()))
        path.write_bytes(gzip.compress(json.dumps(as_of_1_8(said)).encode()))
    found = read_recordings([tmp_path], None, None).trace
    assert found.op.tolist() == wanted.op.tolist()
    assert found.duration_ns.tolist() == wanted.duration_ns.tolist()
