"""Hooks on all schedules of `torch.distributed.pipelining`, with FSDP's reduction."""

from __future__ import annotations

import sys
from typing import Any, Final

from paceline_client.torch.instrumentation.base import Function, Hook, Instrumentation, Job, Level
from paceline_client.torch.layout import stages_of
from paceline_client.torch.tap import BACKWARD, FORWARD, GRADIENTS

_STAGE: Final = "torch.distributed.pipelining.stage:_PipelineStageBase"
_SCHEDULES: Final = "torch.distributed.pipelining.schedules"
# Name of the attribute of a `P2POp` with its operation type, microbatch and chunk.
_LABEL: Final = "paceline_label"


def _chunk(job: Job, stage: Any) -> int:
    """Return the index of a stage among this rank's chunks, in model order."""
    stages = enumerate(stages_of(job.schedule))
    return next((index for index, own in stages if own is stage), 0)


def _records(job: Job, stage: Any) -> bool:
    # Evaluation steps have no backward pass.
    return bool(job.tap.on and stage.has_backward)


def _forward(job: Job, original: Function) -> Function:
    def forward_one_chunk(stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not _records(job, stage):
            return original(stage, fwd_chunk_id, *args, **kwargs)
        with job.tap.computing(FORWARD, fwd_chunk_id, _chunk(job, stage)):
            return original(stage, fwd_chunk_id, *args, **kwargs)

    return forward_one_chunk


def _backward(job: Job, original: Function) -> Function:
    def backward_one_chunk(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        # Of a split backward pass, the part for the input is recorded, because other stages wait
        # for it. The first stage has no such part, so its part for the weights is recorded.
        whole = kwargs.get("full_backward", args[1] if len(args) > 1 else True)
        if not _records(job, stage) or (stage.is_first and not whole):
            return original(stage, bwd_chunk_id, *args, **kwargs)
        with job.tap.computing(BACKWARD, bwd_chunk_id, _chunk(job, stage)):
            return original(stage, bwd_chunk_id, *args, **kwargs)

    return backward_one_chunk


def _backward_weight(job: Job, original: Function) -> Function:
    def backward_weight_one_chunk(stage: Any, bwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
        if not _records(job, stage) or not stage.is_first:
            return original(stage, bwd_chunk_id, *args, **kwargs)
        with job.tap.computing(BACKWARD, bwd_chunk_id, _chunk(job, stage)):
            return original(stage, bwd_chunk_id, *args, **kwargs)

    return backward_weight_one_chunk


def _labels(op: str, job: Job, original: Function) -> Function:
    def labelled(stage: Any, chunk_id: int) -> Any:
        transfers = original(stage, chunk_id)
        if _records(job, stage):
            label = (op, chunk_id, _chunk(job, stage))
            for transfer in transfers:
                setattr(transfer, _LABEL, label)
        return transfers

    return labelled


def _batch(job: Job, original: Function) -> Function:
    def batch_p2p(p2p_ops: list[Any], *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        labels = [
            getattr(transfer, _LABEL)
            for transfer in p2p_ops
            if tap.on and hasattr(transfer, _LABEL)
        ]
        if not labels or len(labels) < len(p2p_ops):
            # Recording is off, or these operations exchange shapes before the first step.
            return original(p2p_ops, *args, **kwargs)
        start = tap.begins(labels[0][0]) if tap.sink is not None else None
        works = original(p2p_ops, *args, **kwargs)
        if len(works) == len(labels):
            return [
                tap.watch(op, work, start, mb, mc)
                for work, (op, mb, mc) in zip(works, labels, strict=True)
            ]
        if len(works) == 1:
            # For coalesced transfers there is a single work.
            work = works[0]
            for op, mb, mc in labels:
                work = tap.watch(op, work, start, mb, mc)
            return [work]
        return works

    return batch_p2p


def _reduce(job: Job, original: Function) -> Function:
    def perform_reduce_grad(stage: Any, *args: Any, **kwargs: Any) -> Any:
        tap = job.tap
        if not _records(job, stage) or not hasattr(stage.submod, "set_is_last_backward"):
            return original(stage, *args, **kwargs)
        # FSDP's groups reduce one after the other, and their own hooks are disabled.
        with tap.span(GRADIENTS):
            return original(stage, *args, **kwargs)

    return perform_reduce_grad


def _label_hook(function: str, parameter: str, op: str) -> Hook:
    return Hook(
        f"{_STAGE}.{function}",
        ("self", parameter),
        Level.P2P,
        lambda job, original: _labels(op, job, original),
    )


PIPELINING: Final = Instrumentation(
    "torch-pipelining",
    "torch.distributed.pipelining",
    wanted=lambda job: (
        job.schedule is not None and "torch.distributed.pipelining.schedules" in sys.modules
    ),
    hooks=(
        Hook(f"{_STAGE}.forward_one_chunk", ("self", "fwd_chunk_id"), Level.COMPUTE, _forward),
        Hook(
            f"{_STAGE}.backward_one_chunk",
            ("self", "bwd_chunk_id", "loss", "full_backward"),
            Level.COMPUTE,
            _backward,
        ),
        Hook(
            f"{_STAGE}.backward_weight_one_chunk",
            ("self", "bwd_chunk_id"),
            Level.COMPUTE,
            _backward_weight,
        ),
        _label_hook("get_fwd_recv_ops", "fwd_chunk_id", "forward-recv"),
        _label_hook("get_fwd_send_ops", "fwd_chunk_id", "forward-send"),
        _label_hook("get_bwd_recv_ops", "bwd_chunk_id", "backward-recv"),
        _label_hook("get_bwd_send_ops", "bwd_chunk_id", "backward-send"),
        Hook(f"{_SCHEDULES}:_batch_p2p", ("p2p_ops",), Level.P2P, _batch),
        Hook(f"{_STAGE}.perform_reduce_grad", ("self",), Level.P2P, _reduce),
    ),
)
