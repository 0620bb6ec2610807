"""Chart data of a report: step timelines, recorded and ideal, and worker heatmaps."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

import numpy as np
from numpy.typing import NDArray

from app.analysis.quantities import NS, BoolArray, FloatArray, SingleArray
from app.analysis.replay.engine.replay import IDEAL, ArrayReplay, Batch, Block, without_transfers
from app.analysis.replay.layout.dense import (
    Nodes,
)
from app.analysis.replay.layout.pipeline import COMPUTE
from app.analysis.replay.session import Replayed, ShapeGroup, prepare_replay
from app.analysis.trace import model as ops
from app.analysis.trace.model import Trace
from app.errors import NotFoundError

# Slowdown 1.0 in the 16-bit integers of a heatmap, which take a tenth of the size of JSON.
HEATMAP_SCALE: Final = 10_000
HEATMAP_TOP: Final = 65_534  # 65,535 once stood for an unknown value


def mean_heatmap(heatmaps: SingleArray) -> SingleArray:
    """Return the mean heatmap over the steps.

    Parameters
    ----------
    heatmaps : float32 array, shape (steps, dp, pp)
        Slowdown of each step if only this worker kept its recorded durations.

    Returns
    -------
    float32 array, shape (dp, pp)

    Examples
    --------
    >>> mean_heatmap(np.array([[[1.0, 1.5]], [[2.0, 1.5]]], dtype=np.float32))
    array([[1.5, 1.5]], dtype=float32)
    """
    # Summed in float64, as float32 sums of hundreds of steps lose digits.
    return cast("SingleArray", heatmaps.mean(axis=0, dtype=np.float64).astype(np.float32))


def encode_heatmap(values: SingleArray) -> bytes:
    """Return slowdowns as little-endian uint16, row by row."""
    scaled = np.rint(values.astype(np.float64) * HEATMAP_SCALE)
    return np.clip(scaled, 0, HEATMAP_TOP).astype("<u2").tobytes()


US_PER_NS: Final = 1e-3
IDEAL_PROCESS: Final = 1_000_000  # process id in Perfetto of the ideal step

# Streams of a stage and their operation types, in drawing order (what-if paper, section 3.2).
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
    """Operations as columns of equal length, sorted by DP rank, stage and start.

    `start_ns` is the launch; `begin_ns` the begin of the computation or transfer, later than the
    launch if an operation waits for its group; `ratio` the duration without waiting ÷ ideal. Times
    count from the step's first start.
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
    """Timeline of a step: recorded for the chosen DP ranks, and ideal (equal on all DP ranks).

    `launch_ns`, `begin_ns`, `end_ns` and `ratio` have the shape (nodes, DP ranks), and so has
    `runs`: whether a DP rank runs a node.
    """

    step: int
    op_names: tuple[str, ...]
    nodes: Nodes
    dp_ranks: tuple[int, ...]
    launch_ns: FloatArray
    begin_ns: FloatArray
    end_ns: FloatArray
    ratio: FloatArray
    runs: BoolArray
    ideal: Lanes
    recorded_s: float
    ideal_s: float

    @property
    def recorded(self) -> Lanes:
        """Return the recorded operations of all chosen DP ranks."""
        return self.on(range(len(self.dp_ranks)))

    def on(self, places: Sequence[int]) -> Lanes:
        """Return the recorded operations of some chosen DP ranks, given by their indices."""
        times = (self.launch_ns, self.begin_ns, self.end_ns, self.ratio)
        columns = tuple(values[:, list(places)] for values in times)
        ranks = [self.dp_ranks[place] for place in places]
        return _lanes(self.nodes, ranks, columns, self.runs[:, list(places)])


def step_timeline(trace: Trace, step: int, dp_ranks: Sequence[int] | None = None) -> Timeline:
    """Return the timeline of a step.

    Parameters
    ----------
    step : int
        An analyzed step.
    dp_ranks : sequence of int, optional
        The DP ranks to include; all by default.

    Raises
    ------
    NotFoundError
        ``step_not_analyzed`` or ``dp_rank_unknown``.
    """
    return replayed_timeline(prepare_replay(trace), step, dp_ranks)


def replayed_timeline(
    replayed: Replayed, step: int, dp_ranks: Sequence[int] | None = None
) -> Timeline:
    """Return the timeline of a step of a replayed session; see `step_timeline`."""
    group = next((group for group in replayed.groups if step in group.layout.steps), None)
    if group is None:
        raise NotFoundError(f"Step {step} was not analyzed", code="step_not_analyzed")
    layout = group.layout
    chosen = list(range(layout.dp)) if dp_ranks is None else sorted(set(dp_ranks))
    if any(not 0 <= dp < layout.dp for dp in chosen):
        raise NotFoundError(f"There are DP ranks 0 to {layout.dp - 1}", code="dp_rank_unknown")
    index = int(np.flatnonzero(layout.steps == step)[0])
    last_ns = float((layout.start_ns[:, index] + layout.duration_ns[:, index]).max())
    # Indexing copies, so that the timeline does not keep the whole session in memory.
    start = layout.start_ns[:, index, chosen]
    end = start + layout.duration_ns[:, index, chosen]
    own = group.durations.recorded_ns[:, index, chosen]
    ideal_start, ideal_end = _ideal_times(group)
    ideal_ns = group.durations.ideal_ns
    with np.errstate(divide="ignore", invalid="ignore"):
        ratio = np.where(ideal_ns[:, None] > 0, own / ideal_ns[:, None], np.nan)
    runs, ideal_runs = np.ones(start.shape, dtype=bool), np.ones((len(ideal_ns), 1), dtype=bool)
    if layout.padding is not None:
        runs = ~layout.padding.where()[:, index, chosen]
        ideal_runs = (ideal_ns > 0)[:, None] | (layout.padding.microbatch < 0)[:, None]
    ideal = (
        ideal_start[:, None],
        (ideal_end - ideal_ns)[:, None],
        ideal_end[:, None],
        np.ones((len(ideal_ns), 1)),
    )
    return Timeline(
        step=step,
        op_names=layout.op_names,
        nodes=layout.nodes,
        dp_ranks=tuple(chosen),
        launch_ns=start,
        begin_ns=np.maximum(start, end - own),
        end_ns=end,
        ratio=ratio,
        runs=runs,
        ideal=_lanes(layout.nodes, [0], ideal, ideal_runs),
        recorded_s=last_ns * NS,
        ideal_s=float(ideal_end.max()) * NS,
    )


def _ideal_times(group: ShapeGroup) -> tuple[FloatArray, FloatArray]:
    """Return launch and end of each node if every operation is ideal, shape (nodes,)."""
    count = len(group.layout.nodes)
    launches, ends = np.empty(count), np.empty(count)

    def observe(node: int, launch: FloatArray, end: FloatArray) -> None:
        launches[node], ends[node] = launch.item(), end.item()

    ideal_ns = group.durations.ideal_ns
    if group.layout.padding is not None:
        ideal_ns = without_transfers(ideal_ns, group.layout.padding.transfers)
    none = np.empty((0, 1, 1))
    block = Block(slice(0, 1), group.durations.recorded_ns, ideal_ns, none, none)
    batch = Batch(np.full((1, count), IDEAL, dtype=np.int32), np.empty((0, 1), dtype=bool))
    ArrayReplay(group.simulator.executor.program, observe).step_ends(batch, block)
    return launches, ends


def _lanes(
    nodes: Nodes,
    dp_ranks: Sequence[int],
    times: tuple[FloatArray, ...],
    runs: BoolArray,
) -> Lanes:
    """Return the operations as `Lanes`; `times` are launch, begin, end, ratio (nodes, DP ranks)."""
    node, place = np.nonzero(runs)
    order = np.lexsort((times[0][node, place], nodes.pp[node], place))
    node, place = node[order], place[order]
    start, begin, end, ratio = (values[node, place] for values in times)
    return Lanes(
        dp=np.asarray(dp_ranks, dtype=np.int32)[place],
        pp=nodes.pp[node],
        op=nodes.op[node],
        mb=nodes.mb[node],
        start_ns=start,
        begin_ns=begin,
        end_ns=end,
        ratio=ratio,
    )


def perfetto(timeline: Timeline, hosts: Mapping[tuple[int, int], str]) -> Iterator[str]:
    """Yield pieces of a timeline in the Chrome trace format for Perfetto, one DP rank at a time.

    The pieces join to one JSON document, hundreds of megabytes for a step of a large job. Each DP
    rank is a process, and so is the ideal step; each stream of a stage is a thread; times are
    microseconds since the step's start. `hosts` maps (DP rank, stage) to a host.
    """
    names, before = timeline.op_names, '{"traceEvents":['
    for place, dp in enumerate(timeline.dp_ranks):
        lanes = timeline.on([place])
        yield before + ",".join(_process(dp, f"recorded, DP rank {dp}", lanes, names, hosts))
        before = ","
    title = "ideal, every DP rank"
    yield before + ",".join(_process(IDEAL_PROCESS, title, timeline.ideal, names, {}))
    other = {
        "step": timeline.step,
        "recorded_s": timeline.recorded_s,
        "ideal_s": timeline.ideal_s,
    }
    yield f'],"displayTimeUnit":"ms","otherData":{json.dumps(other, allow_nan=False)}}}'


def _process(
    pid: int,
    title: str,
    lanes: Lanes,
    op_names: Sequence[str],
    hosts: Mapping[tuple[int, int], str],
) -> Iterator[str]:
    yield _metadata("process_name", pid, 0, {"name": title})
    yield _metadata("process_sort_index", pid, 0, {"sort_index": pid})
    if len(lanes.dp):
        streams = np.array([_stream(name) for name in op_names])
        for tid in np.unique(lanes.pp * len(STREAMS) + streams[lanes.op]).tolist():
            stage, stream = divmod(tid, len(STREAMS))
            host = hosts.get((int(lanes.dp[0]), stage))
            name = f"stage {stage} {STREAMS[stream][0]}" + (f", {host}" if host else "")
            yield _metadata("thread_name", pid, tid, {"name": name})
            yield _metadata("thread_sort_index", pid, tid, {"sort_index": tid})
    yield from _events(pid, lanes, op_names)


def _metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    event = {"ph": "M", "name": name, "pid": pid, "tid": tid, "args": args}
    return json.dumps(event, separators=(",", ":"))


def _stream(name: str) -> int:
    """Return the stream's index of an operation type; collectives are in the last stream."""
    return next((i for i, (_, names) in enumerate(STREAMS) if name in names), len(STREAMS) - 1)


def _events(pid: int, lanes: Lanes, op_names: Sequence[str]) -> Iterator[str]:
    """Yield operations as JSON text; `json.dumps` takes minutes for millions of operations."""
    streams = [_stream(name) for name in op_names]
    heads = [f'{{"ph":"X","pid":{pid},"cat":"{STREAMS[at][0]}","name":' for at in streams]
    quoted = [json.dumps(name)[:-1] for name in op_names]
    columns = (
        lanes.pp.tolist(),
        lanes.op.tolist(),
        lanes.mb.tolist(),
        (lanes.start_ns * US_PER_NS).tolist(),
        ((lanes.end_ns - lanes.start_ns) * US_PER_NS).tolist(),
        (np.maximum(lanes.begin_ns - lanes.start_ns, 0.0) * US_PER_NS).tolist(),
        lanes.ratio.tolist(),
    )
    for pp, op, mb, start, lasts, waits, ratio in zip(*columns, strict=True):
        tid = pp * len(STREAMS) + streams[op]
        # The ratio is NaN if the ideal duration is zero; only NaN differs from itself.
        slow = f',"duration_over_ideal":{ratio:.4f}' if ratio == ratio else ""  # noqa: PLR0124
        if mb == ops.ABSENT:
            name, batch = f'{quoted[op]}"', ""
        else:
            name, batch = f'{quoted[op]} {mb}"', f',"microbatch":{mb}'
        yield (
            f'{heads[op]}{name},"tid":{tid},"ts":{start:.3f},"dur":{lasts:.3f},'
            f'"args":{{"waits_us":{waits:.3f}{slow}{batch}}}}}'
        )
