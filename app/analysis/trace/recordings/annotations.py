"""Ranges that PyTorch records on the host, by their names.

PyTorch's profiler writes them as events, and ``torch.autograd.profiler.emit_nvtx`` as NVTX ranges.
"""

from __future__ import annotations

import re
from typing import Final

from app.analysis.trace.recordings.events import Event
from app.analysis.trace.recordings.kineto_columns import Kind
from app.analysis.trace.recordings.labels import LOADER_PREFIX, OWN_PREFIX, TORCH_PREFIX
from app.analysis.trace.recordings.profiler.scan import (
    PIPELINE_MARKS,
    TRAINING_MARKS,
    Issue,
    Mark,
    Scan,
    Span,
    Work,
    plain_name,
)

# Name of the range that a process group's backend records for each finished collective or transfer.
_BACKEND: Final = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(\w+)(?: \d+->\d+)?")
STEP: Final = "ProfilerStep#"
OPTIMIZER_STEP: Final = "Optimizer.step#"
# Name of the range in which autograd runs the backward of one graph node.
_GRADIENT: Final = "autograd::engine::evaluate_function"
# Name of a graph node's operator. PyTorch 1.8 and 1.9 record it without the range around it.
_NODE: Final = re.compile(r"torch::autograd::\w+|(?:torch::jit::.{1,80}::)?\w*Backward\d*")
# Names of calls of collectives: prefix of the calls by PyTorch's dispatcher, and name of the call
# that each backend records.
_ISSUED: Final = "c10d::"
_COMMUNICATES: Final = "record_param_comms"
# Prefixes of framework ranges that identify the parts of a step in a recording without labels.
_MARKS: Final = (*TRAINING_MARKS, "## ", *PIPELINE_MARKS)
# Prefixes of ranges that are kept as objects; other ranges are only packed into tables.
_ALONE: Final = (
    TORCH_PREFIX,
    OWN_PREFIX,
    LOADER_PREFIX,
    STEP,
    OPTIMIZER_STEP,
    _ISSUED,
    _COMMUNICATES,
    *_MARKS,
)


def kind_of_range(name: str, *, operator: bool) -> Kind:
    """Return the kind of a range from its name, by the same rules as `add_annotation`."""
    if name.startswith(_ALONE) or _BACKEND.fullmatch(name):
        return Kind.ALONE
    if name.startswith(_GRADIENT):
        return Kind.GRADIENT
    if not operator:
        return Kind.RANGE
    return Kind.NODE if _NODE.fullmatch(name) else Kind.OPERATOR


def add_annotation(  # noqa: C901, PLR0913 - a branch for each kind of name
    scan: Scan, name: str, span: Span, thread: int, args: Event, *, operator: bool
) -> None:
    """Add an operator, a call of a collective, or a range of a framework or of the job to a scan.

    Parameters
    ----------
    args : Event
        Arguments of the range: its external id, and the process group of a collective.
    operator : bool
        The range is an operator; else it is one of the job or of a framework.
    """
    if scan.own is not None and scan.add_own_range(name, span):
        return
    if name.startswith((TORCH_PREFIX, OWN_PREFIX, LOADER_PREFIX, STEP)):
        scan.add_range(name, span, thread)
        return
    if name.startswith(OPTIMIZER_STEP):
        scan.optimizers.append(span)
    elif backend := _BACKEND.fullmatch(name):
        scan.works.append(work_of(backend[1], args, span, on_device=False))
        return
    elif scan.own is not None and not operator:
        scan.own.miss(name)
    number = args.optional_identifier("External id")
    if name.startswith(_GRADIENT):
        scan.gradients.add(span, thread)
        scan.add_operator(span, thread)
    elif name.startswith((_ISSUED, _COMMUNICATES)):
        scan.issues.append(
            Issue(
                plain_name(args.text("Collective name") or name.removeprefix(_ISSUED)),
                args.text("Process Group Name"),
                args.text("Process Group Description"),
                args.optional_integer("Seq"),
                span,
                thread,
                identifier(args, "External id"),
                args.optional_integer("Group size"),
                _peer(args),
            )
        )
    elif name.startswith((OPTIMIZER_STEP, *_MARKS)):
        scan.marks.append(Mark(name, span, thread))
    elif operator:
        if _NODE.fullmatch(name):
            scan.nodes.add(span, thread)
        scan.add_operator(span, thread)
    if number is not None and not name.startswith(OPTIMIZER_STEP):
        scan.operators.add(span.start, number, thread)


def work_of(name: str, args: Event, span: Span, *, on_device: bool) -> Work:
    """Return the collective or transfer whose process group the arguments of an event name."""
    return Work(
        plain_name(name),
        args.text("Process Group Name"),
        args.text("Process Group Description"),
        args.optional_integer("Seq"),
        span,
        on_device,
        identifier(args, "correlation"),
        identifier(args, "External id"),
        args.optional_integer("Group size"),
        _peer(args),
    )


def _peer(args: Event) -> int | None:
    ends = (args.optional_integer(key) for key in ("Dst Rank", "Src Rank"))
    # PyTorch records -1 for the recording rank itself.
    return next((rank for rank in ends if rank is not None and rank >= 0), None)


def identifier(args: Event, key: str) -> int:
    """Return the identifier under a key; -1 if there is none."""
    number = args.optional_identifier(key)
    return -1 if number is None else number
