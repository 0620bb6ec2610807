"""Steps that overlap because no collective over all ranks ends them.

Without gradient clipping nothing keeps the stages together: the first one begins the next step
while the last one still ends its own. Then no step has a beginning of its own, and the time from
the end of one step to the end of the next is what a step takes.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.draft import Draft, Proposal
from app.analysis.replay.adaptations.evidence import Sign

# Steps overlap when they do so in this share of the cases…
_REGULARLY: Final = 0.98
# …and usually by this share of a step: an optimizer that ends a little later somewhere is no sign.
_LEAST_OVERLAP: Final = 0.005


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
    usual_ms = float(np.median(overlap)) * 1e-6
    sign = Sign(
        (f"the next step begins {usual_ms:.0f} ms before the last stage ends its own",), share
    )
    return Proposal(sign, draft.with_graphs([replace(draft.graphs[0], chained=True)]))
