"""Decoder of MegaScan (MegatronApp) files: begin and end events of scopes on every rank.

MegaScan writes two forms. The aggregated file has Chrome's events of all ranks in microseconds of
one clock; ``pid`` is the number of the DP × PP cell (the stages of a DP rank are consecutive), and
``tid`` is the tensor rank. The file of a single rank has device times: ``rel_ts`` in nanoseconds
from the start of the iteration; events at the start and end of an iteration have the host's time
between iterations. In both forms the end event of a scope has its microbatch, chunk and stage.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from app.analysis.trace.limits import MAX_MODEL_CHUNKS, MAX_WORLD, Limits, refuse, refuse_body
from app.analysis.trace.metadata import Unmapped, total
from app.analysis.trace.model import (
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    SessionMeta,
    Sizes,
)
from app.analysis.trace.recordings.events import NS_PER_US, Event
from app.analysis.trace.recordings.json_events import read_events
from app.analysis.trace.recordings.recording import Recording, Rows
from app.errors import Fault, InvalidMetadataError

_SCOPES: Final = {
    "forward": FORWARD_COMPUTE,
    "forward-warmup": FORWARD_COMPUTE,
    "backward": BACKWARD_COMPUTE,
    "backward-cooldown": BACKWARD_COMPUTE,
    "recv-forward": FORWARD_RECV,
    "recv-warmup": FORWARD_RECV,
    "recv-backward": BACKWARD_RECV,
    "recv-cooldown": BACKWARD_RECV,
    "send-forward": FORWARD_SEND,
    "send-warmup": FORWARD_SEND,
    "send-backward": BACKWARD_SEND,
    "send-cooldown": BACKWARD_SEND,
    "exchange-next": "forward-send-backward-recv",
    "exchange-prev": "backward-send-forward-recv",
    "allreduce": GRADS_REDUCE_SCATTER,
    "optimizer": OPTIMIZER,
}
_ITERATION: Final = "iteration"
_BEGIN, _END = "iteration begin", "iteration end"
_REDUCE: Final = "reduce"
_MAX_DEPTH: Final = 64


@dataclass(frozen=True, slots=True)
class _Scope:
    """A finished scope: times in ns, lane (``pid``, ``tid``) and the fields of its end event."""

    name: str
    start: int
    end: int
    step: int
    pid: int
    tid: int
    args: Event


def decode_megascan(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode a MegaScan file and check its values.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        Required for the file of one rank, which does not contain the sizes of its job.

    Raises
    ------
    InvalidTraceError
        `trace.unpaired_event`: the end event of a scope has no begin event. Also the errors of
        `read_items`, `Event` and `Rows.trace`.
    InvalidMetadataError
        `metadata.missing`: the job's sizes are unknown.
    """
    first = next(read_events(body, limits), None)
    if first is None:
        refuse_body("no_rows", "there is no event in the body")
    relative = "ts" not in first.fields
    if meta is None:
        if relative:
            message = "the records of one rank do not say the sizes of its job: give them with it"
            raise InvalidMetadataError(message, code="metadata.missing")
        meta = SessionMeta(_sizes(body, limits))
    rows, lost = Rows(limits), Counter[str]()
    for scope in _relative_scopes(body, limits) if relative else _scopes(body, limits):
        _add(rows, lost, scope, meta.sizes)
    unmapped = (Unmapped(f"scopes called {name[:80]}", count) for name, count in lost.items())
    return Recording(rows.trace(meta, part=part), total(unmapped))


def _sizes(body: Path | bytes, limits: Limits) -> Sizes:
    """Return the job sizes implied by the largest stage, cell, tensor rank and chunk numbers."""
    pp = cell = tp = chunk = 0
    for event in read_events(body, limits):
        cell = max(cell, _bounded(event, "pid", MAX_WORLD))
        tp = max(tp, _bounded(event, "tid", MAX_WORLD))
        if event.text("ph") == "E":
            pp = max(pp, _stage(event.args) or 0)
            chunk = max(chunk, event.args.optional_integer("model_chunk") or 0)
    if chunk >= MAX_MODEL_CHUNKS or pp >= MAX_WORLD:
        refuse_body("model_chunk_out_of_range", f"stage {pp} or chunk {chunk} is out of range")
    stages = pp + 1
    return Sizes(dp=cell // stages + 1, pp=stages, tp=tp + 1, vpp=chunk + 1)


def _bounded(event: Event, key: str, limit: int) -> int:
    value = event.optional_integer(key) or 0
    if not 0 <= value < limit:
        message = f"the {key} of event {event.index} is outside of 0 to {limit - 1}"
        refuse([Fault("rank_out_of_range", message, row=event.index, column=key)])
    return value


def _stage(args: Event) -> int | None:
    stage = args.optional_integer("pp_rank")
    return args.optional_integer("pp_rk") if stage is None else stage


@dataclass(slots=True)
class _Lane:
    """Stack of the open scopes of one rank."""

    open: list[tuple[str, int]] = field(default_factory=list)
    reduce: tuple[int, Event] | None = None

    def begin(self, event: Event, name: str, time: int) -> None:
        if len(self.open) >= _MAX_DEPTH:
            refuse([Fault("unpaired_event", f"over {_MAX_DEPTH} scopes are open", row=event.index)])
        self.open.append((name, time))

    def end(self, event: Event, name: str) -> int:
        """Close the innermost scope, which must have this name; return the scope's start in ns."""
        if not self.open or self.open[-1][0] != name:
            message = f"event {event.index} ends {name[:80]!r}, which is not what is open"
            refuse([Fault("unpaired_event", message, row=event.index)])
        return self.open.pop()[1]


def _scopes(body: Path | bytes, limits: Limits) -> Iterator[_Scope]:
    """Yield the scopes of an aggregated file of all ranks."""
    lanes: dict[tuple[int, int], _Lane] = {}
    for event in read_events(body, limits):
        pid, tid = _bounded(event, "pid", MAX_WORLD), _bounded(event, "tid", MAX_WORLD)
        lane = lanes.setdefault((pid, tid), _Lane())
        name, phase = event.text("name"), event.text("ph")
        if phase not in ("B", "E", "i"):
            continue
        time, args = event.nanoseconds("ts", NS_PER_US), event.args
        if phase == "B":
            lane.begin(event, name, time)
        elif phase == "E":
            start = lane.end(event, name)
            yield _Scope(name, start, time, args.integer("iteration"), pid, tid, args)
        elif name == _REDUCE:
            lane.reduce = (time, args)
        elif name == _END and lane.reduce is not None:
            (start, args), lane.reduce = lane.reduce, None
            yield _Scope(_REDUCE, start, time, args.integer("iteration"), pid, tid, args)


def _relative_scopes(body: Path | bytes, limits: Limits) -> Iterator[_Scope]:
    """Yield the scopes of the file of a single rank."""
    lane, iteration, begin, inside = _Lane(), -1, 0, False
    for event in read_events(body, limits):
        name, phase = event.text("name"), event.text("ph")
        if name == _ITERATION:
            inside = phase == "B"
            if inside:
                iteration += 1
                begin += event.nanoseconds("pad_before", 1)
            else:
                begin += event.nanoseconds("duration_wall", 1)
            lane = _Lane()
        # Scopes outside of training iterations belong to an evaluation, which is not decoded.
        elif inside and phase == "B":
            lane.begin(event, name, begin + event.nanoseconds("rel_ts", 1))
        elif inside and phase == "E":
            start, end = lane.end(event, name), begin + event.nanoseconds("rel_ts", 1)
            yield _Scope(name, start, end, iteration, 0, 0, event)


def _add(rows: Rows, lost: Counter[str], scope: _Scope, sizes: Sizes) -> None:
    args = scope.args
    stage, dp, tp = _stage(args), args.optional_integer("dp_rk"), args.optional_integer("tp_rk")
    dp = scope.pid // sizes.pp if dp is None else dp
    stage = scope.pid % sizes.pp if stage is None else stage
    tp = scope.tid if tp is None else tp
    op = _SCOPES.get(scope.name)
    if scope.name == _REDUCE and sizes.dp == 1:
        # With a single data-parallel rank no gradients are reduced: the rest of the iteration is
        # the optimizer.
        op = OPTIMIZER
    if op is None:
        lost[scope.name] += 1
        return
    rank = args.optional_integer("g_rk")
    if rank is None:
        # Megatron's rank order: tensor ranks vary fastest, pipeline stages slowest.
        rank = (stage * sizes.dp + dp) * sizes.tp * sizes.cp + tp
    rows.add(
        op,
        scope.start,
        scope.end - scope.start,
        event=args.index,
        rank=rank,
        dp=dp,
        pp=stage,
        step=scope.step,
        mb=args.optional_integer("microbatch"),
        mc=args.optional_integer("model_chunk"),
    )
