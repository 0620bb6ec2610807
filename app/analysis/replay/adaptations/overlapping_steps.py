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

from app.analysis.replay.adaptations.draft import Draft, Proposal
from app.analysis.replay.adaptations.evidence import Sign
from app.analysis.replay.adaptations.signs.sampling import sampled
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import with_edges
from app.analysis.trace.model import FORWARD_COMPUTE, PARAMS_ALL_GATHER

# Steps overlap when they do so in this share of the cases…
_REGULARLY: Final = 0.98
# …and usually by this share of a step: an optimizer that ends a little later somewhere is no sign.
_LEAST_OVERLAP: Final = 0.005
# Steps that follow one another tell what usually passes between them.
_LEAST_STEPS: Final = 3
# A first forward waits for what gathers parameters when it begins with that in this share of steps.
_MOSTLY: Final = 0.5


def propose_overlapping_steps(draft: Draft) -> Proposal | None:
    """Chain the steps on each stage, where they overlap."""
    if not draft.absolute or len(draft.layouts) > 1:
        return None
    layout = draft.layouts[0]
    if len(layout.steps) < 2 or (np.diff(layout.steps) != 1).any():  # noqa: PLR2004 - a pair
        return None
    last = list(draft.graphs[0].last)
    length = (layout.start_ns[last] + layout.duration_ns[last]).max(axis=(0, 2))
    period = np.diff(layout.begin_ns)
    overlap = length[:-1] - period
    share = float((overlap > 0).mean())
    if share < _REGULARLY or np.median(overlap) < _LEAST_OVERLAP * np.median(period):
        return None
    typical_ms = float(np.median(overlap)) * 1e-6
    sign = Sign(
        (f"the next step begins {typical_ms:.0f} ms before the last stage ends its own",), share
    )
    return Proposal(sign, draft.with_graphs([replace(draft.graphs[0], chained=True)]))


def propose_uneven_begins(draft: Draft) -> Proposal | None:
    """Chain the steps on each rank where there is no pipeline, with what usually passes between.

    Ranks leave the last collective of a step together and go on by themselves: an optimizer that
    takes one of them longer delays its next step and no other's. In short steps that counts.
    """
    if not draft.absolute or len(draft.layouts) > 1:
        return None
    layout, graph = draft.layouts[0], draft.graphs[0]
    following = np.diff(layout.steps) == 1
    if layout.dp == 1 or graph.chained or len(layout.steps) < _LEAST_STEPS or not following.all():
        return None
    begins = layout.start_ns.min(axis=0)
    ends = (layout.start_ns + layout.duration_ns).max(axis=0)
    turns = begins[1:] - ends[:-1] + np.diff(layout.begin_ns)[:, None]
    if np.median(turns) < 0:
        return None
    apart_ms = float(np.median(begins.max(axis=1))) * 1e-6
    sign = Sign((f"ranks begin steps {apart_ms:.1f} ms apart",), float((turns >= 0).mean()))
    chained = replace(graph, chained=True, turn_ns=float(np.median(turns)))
    return Proposal(sign, draft.with_graphs([chained]))


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
