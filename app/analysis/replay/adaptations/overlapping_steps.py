"""Steps that begin otherwise than the paper's model has it.

They overlap where no collective over all ranks ends them. Without gradient clipping nothing keeps
the stages together: the first one begins the next step while the last one still ends its own. Then
no step has a beginning of its own, and the time from the end of one step to the end of the next is
what a step takes.

And with virtual stages the model lets a stage's first forward follow the gathering of its own
chunk's parameters. A framework that gathers those of all chunks first computes nothing before.
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

# Steps overlap when they do so in this share of the cases…
_REGULARLY: Final = 0.98
# …and usually by this share of a step: an optimizer that ends a little later somewhere is no sign.
_LEAST_OVERLAP: Final = 0.005
# Stages begin a step as they end it when the one is off the other by at most this share of how far
# apart they begin.
_LIKE: Final = 0.25
# At least that many steps that follow one tell what usually passes between them.
_LEAST_FOLLOWING: Final = 2
# A first forward waits for what gathers parameters when it begins with that in this share of steps.
_MOSTLY: Final = 0.5


def propose_overlapping_steps(draft: Draft) -> Proposal | None:
    """Chain the steps on each stage, where they overlap."""
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
    """Return the sign of steps that begin before the one before has ended, with a `last` node."""
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
    """Return the sign of it where no step follows another one, as where windows have one each.

    Steps are alike: a stage that ends one so much later than the others has begun it as much
    later, having ended the one before as late.
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
    """Chain the steps on each rank where there is no pipeline, with what usually passes between.

    Ranks leave the last collective of a step together and go on by themselves: an optimizer that
    takes one of them longer delays its next step and no other's. In short steps that counts.
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
    """Return what usually passes between steps of a rank, given all that does there.

    Of an even number of ranks the lower one tells: half of what one of two ranks alone waits for in
    each step is usual on neither. And what ranks are recorded to do there takes the others as long
    as the one that does it fastest.

    Parameters
    ----------
    turns_ns, opened_ns : float64 array, shape (steps that follow one, dp)
        All that passes, and what of it is recorded.
    """
    if opened_ns is None:
        named_ns = np.zeros(turns_ns.shape)
    else:
        named_ns = np.minimum(opened_ns, np.maximum(turns_ns, 0.0))
    rest_ns = np.quantile(np.median(turns_ns - named_ns, axis=0), 0.5, method="lower")
    return float(rest_ns + np.median(named_ns, axis=0).min())


def propose_gathered_first(draft: Draft) -> Proposal | None:
    """Let each stage's first forward follow all that gathers parameters, where it does."""
    found = [find_gathered_first(sampled(layout)) for layout in draft.layouts]
    first = next((item for item in found if item is not None), None)
    if first is None:
        return None
    graphs = tuple(
        graph if item is None else with_edges(graph, layout, item[0], {})
        for layout, graph, item in zip(draft.layouts, draft.graphs, found, strict=True)
    )
    return Proposal(first[1], draft.with_graphs(graphs))


def find_gathered_first(layout: Layout) -> tuple[dict[int, tuple[int, ...]], Sign] | None:
    """Return by first forward what gathers the parameters of its stage; None if one is earlier.

    Nor where all are much later: then it is not the gathering that they wait for, but their data.
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
        # nearer to the last gathering than that is to the first
        near = layout.start_ns[forward] - ends <= ends - gathered.min(axis=0)
        at_once |= bool(near.mean() >= _MOSTLY)
    if not at_once:
        return None
    return after, Sign((f"forward-compute on all {layout.pp} stages",), float(np.mean(shares)))
