"""Waiting that a recording does not tell from computing, so that no worker can be blamed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.replay.adaptations.hidden_collectives import find_hidden_collectives
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import DP_COLLECTIVES


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why there is no verdict, however near the replay is to the recording."""

    verdict: str  # in a sentence, after "No verdict: "
    reason: str  # with what would help


NO_COLLECTIVES: Final = Unseen(
    verdict="waiting cannot be told from computing, no data-parallel collective is recorded",
    reason=(
        "No collective of the data-parallel ranks is recorded, so waiting cannot be told from "
        "computing here: pass the wrapped model to attach(model=…), or record what the ranks "
        "exchange, with its own start and end."
    ),
)


def unseen_waiting(layout: Layout) -> Unseen | None:
    """Return why it is not known who waits; None where it is.

    Without a pipeline, data-parallel ranks meet in collectives alone. In one, transfers show who
    waits within each of its replicas.
    """
    exchanged = layout.of_types(*(name for name in DP_COLLECTIVES if name in layout.op_names))
    if layout.pp == 1 and layout.dp > 1 and not exchanged.any():
        return NO_COLLECTIVES
    hidden = find_hidden_collectives(layout)
    if hidden is None:
        return None
    return Unseen(
        verdict="computations wait inside for collectives that are not recorded",
        reason=(
            "Computations of DP peers end together although they began apart "
            f"({', '.join(hidden.where)}): collectives inside of them are not recorded, and what "
            "waits looks slow. Record them, with their own start and end."
        ),
    )
