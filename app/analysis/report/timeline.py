"""The timeline of one step: as recorded, and as it would have been without stragglers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.engine.replay import IDEAL, ArrayReplay, Batch, Block
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.replay.layout.graph import COMPUTE
from app.analysis.replay.session import ShapeGroup, prepare_replay
from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace
from app.errors import NotFoundError

NS: Final = 1e-9
US_PER_NS: Final = 1e-3

# Streams of a stage in the order in which they are drawn (paper, section 3.2).
STREAMS: Final[tuple[tuple[str, frozenset[str]], ...]] = (
    ("compute", COMPUTE | {ops.OPTIMIZER, ops.GC}),
    ("forward-send", frozenset({ops.FORWARD_SEND})),
    ("forward-recv", frozenset({ops.FORWARD_RECV})),
    ("backward-send", frozenset({ops.BACKWARD_SEND})),
    ("backward-recv", frozenset({ops.BACKWARD_RECV})),
    ("collectives", frozenset()),
)


@dataclass(frozen=True, slots=True, eq=False)
class Lanes:
    """Operations as columns of equal length, by DP rank and stage, then start.

    `start_ns` is the launch; `begin_ns` is when computing begins or when data begins to move,
    which is later than the launch where an operation waits for its group; `ratio` is the
    duration without waiting over its ideal. Times count from the step's first start.
    """

    dp: NDArray[np.int32]
    pp: NDArray[np.int32]
    op: NDArray[np.int16]
    mb: NDArray[np.int32]
    start_ns: FloatArray
    begin_ns: FloatArray
    end_ns: FloatArray
    ratio: FloatArray


@dataclass(frozen=True, slots=True, eq=False)
class Timeline:
    """One step, recorded on the chosen DP ranks and ideal, where all DP ranks are alike."""

    step: int
    op_names: tuple[str, ...]
    recorded: Lanes
    ideal: Lanes
    recorded_s: float
    ideal_s: float


def step_timeline(trace: Trace, step: int, dp_ranks: Sequence[int] | None = None) -> Timeline:
    """Return the timeline of a step.

    Parameters
    ----------
    trace : Trace
    step : int
        An analyzed step.
    dp_ranks : sequence of int, optional
        The DP ranks wanted; all where not given. `ideal` holds one lane that stands for all.

    Raises
    ------
    NotFoundError
        ``step_not_analyzed`` or ``dp_rank_unknown``.
    """
    replayed = prepare_replay(trace)
    group = next((group for group in replayed.groups if step in group.layout.steps), None)
    if group is None:
        raise NotFoundError(f"Step {step} was not analyzed", code="step_not_analyzed")
    layout = group.layout
    chosen = list(range(layout.dp)) if dp_ranks is None else sorted(set(dp_ranks))
    if any(not 0 <= dp < layout.dp for dp in chosen):
        raise NotFoundError(f"There are DP ranks 0 to {layout.dp - 1}", code="dp_rank_unknown")
    index = int(np.flatnonzero(layout.steps == step)[0])
    start = layout.start_ns[:, index]
    end = start + layout.duration_ns[:, index]
    own = group.durations.recorded_ns[:, index]
    ideal_start, ideal_end = _ideal_times(group)
    ideal_ns = group.durations.ideal_ns
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(ideal_ns[:, None] > 0, own / ideal_ns[:, None], np.nan)
    return Timeline(
        step=step,
        op_names=layout.op_names,
        recorded=_lanes(group, chosen, (start, np.maximum(start, end - own), end, ratio)),
        ideal=_lanes(
            group,
            [0],
            (
                ideal_start[:, None],
                (ideal_end - ideal_ns)[:, None],
                ideal_end[:, None],
                np.ones((len(ideal_ns), 1)),
            ),
        ),
        recorded_s=float(end.max()) * NS,
        ideal_s=float(ideal_end.max()) * NS,
    )


def _ideal_times(group: ShapeGroup) -> tuple[FloatArray, FloatArray]:
    """Return launch and end of each node with every operation ideal, shape (nodes,)."""
    count = len(group.layout.nodes)
    launches, ends = np.empty(count), np.empty(count)

    def observe(node: int, launch: FloatArray, end: FloatArray) -> None:
        launches[node], ends[node] = launch.item(), end.item()

    ideal_ns = group.durations.ideal_ns
    none = np.empty((0, 1, 1))
    block = Block(slice(0, 1), group.durations.recorded_ns, ideal_ns, none, none)
    batch = Batch(np.full((1, count), IDEAL, dtype=np.int32), np.empty((0, 1), dtype=bool))
    ArrayReplay(group.simulator.executor.program, observe).step_ends(batch, block)
    return launches, ends


def _lanes(
    group: ShapeGroup,
    dp_ranks: Sequence[int],
    times: tuple[FloatArray, FloatArray, FloatArray, FloatArray],
) -> Lanes:
    """Flatten (launch, begin, end, ratio), each of shape (nodes, dp), for the chosen DP ranks."""
    nodes = group.layout.nodes
    node = np.repeat(np.arange(len(nodes)), len(dp_ranks))
    dp = np.tile(np.asarray(dp_ranks, dtype=np.int32), len(nodes))
    order = np.lexsort((times[0][node, dp], nodes.pp[node], dp))
    node, dp = node[order], dp[order]
    start, begin, end, ratio = (values[node, dp] for values in times)
    return Lanes(
        dp=dp,
        pp=nodes.pp[node],
        op=nodes.op[node],
        mb=nodes.mb[node],
        start_ns=start,
        begin_ns=begin,
        end_ns=end,
        ratio=ratio,
    )


def perfetto(timeline: Timeline, hosts: Mapping[tuple[int, int], str]) -> dict[str, Any]:
    """Return a timeline in the Chrome trace format, which Perfetto opens.

    A process a DP rank, recorded and ideal; a thread a stream of each stage; times in microseconds
    since the step's start. `hosts` names the host of a (DP rank, stage).
    """
    events: list[dict[str, Any]] = []
    for base, title, lanes in (
        (0, "recorded", timeline.recorded),
        (1_000_000, "ideal", timeline.ideal),
    ):
        for dp in np.unique(lanes.dp).tolist():
            name = f"{title}, DP rank {dp}" if title == "recorded" else "ideal, every DP rank"
            events.append(_metadata("process_name", base + dp, 0, {"name": name}))
            events.append(_metadata("process_sort_index", base + dp, 0, {"sort_index": base + dp}))
        events += _threads(base, lanes, timeline.op_names, hosts if base == 0 else {})
        events += _events(base, lanes, timeline.op_names)
    return {
        "traceEvents": events,
        "displayTimeUnit": "ms",
        "otherData": {
            "step": timeline.step,
            "recorded_s": timeline.recorded_s,
            "ideal_s": timeline.ideal_s,
        },
    }


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> dict[str, Any]:
    return {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}


def _stream(name: str) -> int:
    """Return the stream that an op type runs on; collectives are the last."""
    return next((i for i, (_, names) in enumerate(STREAMS) if name in names), len(STREAMS) - 1)


def _threads(
    base: int, lanes: Lanes, op_names: Sequence[str], hosts: Mapping[tuple[int, int], str]
) -> Iterator[dict[str, Any]]:
    present = {
        (dp, pp, _stream(op_names[op]))
        for dp, pp, op in zip(lanes.dp.tolist(), lanes.pp.tolist(), lanes.op.tolist(), strict=True)
    }
    for dp, pp, stream in sorted(present):
        host = hosts.get((dp, pp))
        name = f"stage {pp} {STREAMS[stream][0]}" + (f", {host}" if host else "")
        tid = pp * len(STREAMS) + stream
        yield _metadata("thread_name", base + dp, tid, {"name": name})
        yield _metadata("thread_sort_index", base + dp, tid, {"sort_index": tid})


def _events(base: int, lanes: Lanes, op_names: Sequence[str]) -> Iterator[dict[str, Any]]:
    columns = (
        lanes.dp.tolist(),
        lanes.pp.tolist(),
        lanes.op.tolist(),
        lanes.mb.tolist(),
        (lanes.start_ns * US_PER_NS).tolist(),
        (lanes.begin_ns * US_PER_NS).tolist(),
        (lanes.end_ns * US_PER_NS).tolist(),
        lanes.ratio.tolist(),
    )
    for dp, pp, op, mb, start, begin, end, ratio in zip(*columns, strict=True):
        args: dict[str, Any] = {"waits_us": round(max(begin - start, 0.0), 3)}
        if ratio == ratio:  # noqa: PLR0124 - NaN where the ideal duration is zero
            args["duration_over_ideal"] = round(ratio, 4)
        if mb != ops.ABSENT:
            args["microbatch"] = mb
        yield {
            "ph": "X",
            "name": op_names[op] + (f" {mb}" if mb != ops.ABSENT else ""),
            "cat": STREAMS[_stream(op_names[op])][0],
            "pid": base + dp,
            "tid": pp * len(STREAMS) + _stream(op_names[op]),
            "ts": round(start, 3),
            "dur": round(end - start, 3),
            "args": args,
        }
