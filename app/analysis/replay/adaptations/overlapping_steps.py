"""Adaptations of the begins of steps: overlapping steps, uneven begins, gathering of parameters.

Steps overlap if no collective over all ranks ends them: without gradient clipping the first stage
begins the next step while the last stage is still in the previous step. The time of such a step is
the time from the end of the previous step to its own end.

With virtual stages, the first forward of a stage follows the gathering of its own chunk's
parameters in the paper's model. A framework may gather the parameters of all chunks first.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.candidate import Draft, Proposal, stage_ends
from app.analysis.replay.adaptations.kind import Sign
from app.analysis.replay.adaptations.signs import sampled
from app.analysis.replay.layout.dense import FloatArray, Layout
from app.analysis.replay.layout.dependency_graph import with_edges
from app.analysis.trace.model import FORWARD_COMPUTE, PARAMS_ALL_GATHER

# Steps overlap if at least this share of them begins before the previous step has ended…
_REGULARLY: Final = 0.98
# …and if the median overlap is at least this share of a step: an optimizer that ends slightly late
# is no overlap.
_LEAST_OVERLAP: Final = 0.005
# Stages begin steps in the order and at the distances of their ends if the offsets of begins and
# ends differ by at most this share of the largest offset.
_LIKE: Final = 0.25
# Smallest number of steps with a recorded previous step for which a usual gap is computed.
_LEAST_FOLLOWING: Final = 2
# A first forward follows the gathering of parameters if it begins soon after the gathering in at
# least this share of steps.
_MOSTLY: Final = 0.5


def propose_overlapping_steps(draft: Draft) -> Proposal | None:
    """Propose chained steps: a stage begins a step when it has ended its previous step."""
    if not draft.absolute or len(draft.layouts) > 1:
        return None
    layout = draft.layouts[0]
    following = np.diff(layout.steps) == 1
    if following.any() and not following.all():
        return None
    last = list(draft.graphs[0].last)
    sign = _overlap(layout, last) if following.any() else _begun_as_ended(layout)
    if sign is None:
        return None
    return Proposal(sign, draft.with_graphs([replace(draft.graphs[0], chained=True)]))


def _overlap(layout: Layout, last: list[int]) -> Sign | None:
    """Return the sign that consecutive steps overlap; None if they do not.

    `last` are the nodes that may end a step.
    """
    length = (layout.start_ns[last] + layout.duration_ns[last]).max(axis=(0, 2))
    period = np.diff(layout.begin_ns)
    overlap = length[:-1] - period
    share = float((overlap > 0).mean())
    if share < _REGULARLY or np.median(overlap) < _LEAST_OVERLAP * np.median(period):
        return None
    typical_ms = float(np.median(overlap)) * 1e-6
    return Sign(
        (f"the next step begins {typical_ms:.0f} ms before the last stage ends its own",), share
    )


def _begun_as_ended(layout: Layout) -> Sign | None:
    """Return the sign of overlapping steps for a recording without consecutive steps.

    If steps overlap, the differences between the begins of stages equal the differences between
    their ends. None if they do not.
    """
    if layout.pp == 1:
        return None
    ends = stage_ends(layout).mean(axis=2)
    begins = np.array(
        [
            layout.start_ns[layout.nodes.pp == stage].min(axis=0).mean(axis=1)
            for stage in range(layout.pp)
        ]
    )
    later, length = begins - begins.min(axis=0), ends.max(axis=0)
    overlap = later.max(axis=0)
    like = np.abs(later - (ends - ends.min(axis=0))).max(axis=0) <= _LIKE * overlap
    share = float((like & (overlap >= _LEAST_OVERLAP * length)).mean())
    if share < _REGULARLY:
        return None
    typical_ms = float(np.median(overlap)) * 1e-6
    return Sign((f"stages begin a step up to {typical_ms:.0f} ms apart, as they end it",), share)


def propose_uneven_begins(draft: Draft) -> Proposal | None:
    """Propose chained steps with the usual gap on each rank of a job without a pipeline.

    All ranks leave the last collective of a step at the same time. If the optimizer takes longer on
    one rank, this delays only the next step of that rank. The delay matters if steps are short.
    """
    if not draft.absolute or len(draft.layouts) > 1:
        return None
    layout, graph = draft.layouts[0], draft.graphs[0]
    following = np.diff(layout.steps) == 1
    if layout.dp == 1 or graph.chained or following.sum() < _LEAST_FOLLOWING:
        return None
    begins = layout.start_ns.min(axis=0)
    ends = (layout.start_ns + layout.duration_ns).max(axis=0)
    turns = (begins[1:] - ends[:-1] + np.diff(layout.begin_ns)[:, None])[following]
    opened = None if layout.opened_ns is None else layout.opened_ns[1:][following]
    step_gap_ns = _usual_step_gap_ns(turns, opened)
    if step_gap_ns < 0:
        return None
    apart_ms = float(np.median(begins.max(axis=1))) * 1e-6
    sign = Sign((f"ranks begin steps {apart_ms:.1f} ms apart",), float((turns >= 0).mean()))
    chained = replace(graph, chained=True, step_gap_ns=step_gap_ns)
    return Proposal(sign, draft.with_graphs([chained]))


def _usual_step_gap_ns(turns_ns: FloatArray, opened_ns: FloatArray | None) -> float:
    """Return the usual gap between two steps of a rank, ns.

    It is the sum of the usual time of recorded host operations (the minimum over ranks) and of the
    remaining time (the lower median over ranks). So a gap on a single rank, or slower host
    operations, do not lengthen the usual gap.

    Parameters
    ----------
    turns_ns, opened_ns : float64 array, shape (steps with a recorded previous step, dp)
        Length of each gap, and the part of the gap after the start of recorded host operations.
    """
    if opened_ns is None:
        named_ns = np.zeros(turns_ns.shape)
    else:
        named_ns = np.minimum(opened_ns, np.maximum(turns_ns, 0.0))
    rest_ns = np.quantile(np.median(turns_ns - named_ns, axis=0), 0.5, method="lower")
    return float(rest_ns + np.median(named_ns, axis=0).min())


def propose_gathered_first(draft: Draft) -> Proposal | None:
    """Propose that each stage's first forward waits until all of its parameters are gathered."""
    by_layout = [find_gathered_first(sampled(layout)) for layout in draft.layouts]
    first = next((item for item in by_layout if item is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if item is None else with_edges(graph, layout, item[0], {})
        for layout, graph, item in zip(draft.layouts, draft.graphs, by_layout, strict=True)
    )
    return Proposal(first[1], draft.with_graphs(graphs))


def find_gathered_first(layout: Layout) -> tuple[dict[int, tuple[int, ...]], Sign] | None:
    """Return the gathering collectives that each stage's first forward waits for, and the sign.

    Return None if a first forward regularly begins before the last gathering has ended, and if all
    first forwards begin much later than the gathering: they then wait for their data.
    """
    after: dict[int, tuple[int, ...]] = {}
    shares: list[float] = []
    at_once = False
    for stage in range(layout.pp):
        forwards, gathers = (
            layout.of(name, stage) for name in (FORWARD_COMPUTE, PARAMS_ALL_GATHER)
        )
        if not len(forwards) or not len(gathers):
            return None
        forward = int(forwards[np.argmin(layout.launch[forwards])])
        gathered = layout.start_ns[gathers] + layout.duration_ns[gathers]
        ends = gathered.max(axis=0)
        share = float((layout.start_ns[forward] >= ends).mean())
        if share < _REGULARLY:
            return None
        after[forward] = tuple(gathers.tolist())
        shares.append(share)
        # The time from the last gathering to the forward is at most the time between the ends of
        # the gatherings.
        near = layout.start_ns[forward] - ends <= ends - gathered.min(axis=0)
        at_once |= bool(near.mean() >= _MOSTLY)
    if not at_once:
        return None
    return after, Sign((f"forward-compute on all {layout.pp} stages",), float(np.mean(shares)))
