"""What keeps a recording from having a verdict, however near its replay is to it.

Waiting that it does not tell from computing, so that no worker can be blamed; recordings that are
not of one session; a job that would take longer without stragglers.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from app.analysis.replay.adaptations.hidden_collectives import find_hidden_collectives
from app.analysis.replay.clocks.attempts import attempts_apart
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import DP_COLLECTIVES
from app.analysis.replay.session import Replayed
from app.analysis.wording import named

# A job that is slower without stragglers by more than this is told wrong; by less, its ideal, which
# is a mean and a median, is off a little.
LEAST_SLOWDOWN: Final = 0.97


@dataclass(frozen=True, slots=True)
class Unseen:
    """Why there is no verdict, however near the replay is to the recording."""

    verdict: str  # in a sentence, after "No verdict: "
    reason: str  # with what would help
    timed: bool = True  # whether its times tell all the same what passes between steps


NO_COLLECTIVES: Final = Unseen(
    verdict="waiting cannot be told from computing, no data-parallel collective is recorded",
    reason=(
        "No collective of the data-parallel ranks is recorded, so waiting cannot be told from "
        "computing here: pass the wrapped model to attach(model=…), or record what the ranks "
        "exchange, with its own start and end."
    ),
)


def unseen_of(replayed: Replayed) -> Unseen | None:
    """Return why no worker can be blamed; None where a verdict is possible."""
    apart = attempts_apart(replayed.layout, replayed.clocks)
    return unseen_waiting(replayed.layout) if apart is None else _two_attempts(*apart)


def _two_attempts(ranks: list[int], by_s: float) -> Unseen:
    who = named("rank", [str(rank) for rank in ranks])
    were = "was" if len(ranks) == 1 else "were"
    return Unseen(
        verdict=(
            f"these recordings are of no one session, {who} {were} recorded {by_s:,.1f} s "
            "after the others"
        ),
        reason=(
            f"{who.capitalize()} {were} recorded {by_s:,.1f} s after the others, in steps of "
            "another length: these are recordings of two attempts. Analyze the files of one "
            "attempt."
        ),
        timed=False,
    )


def faster_with_stragglers(replayed: Replayed, slowdown: float) -> Unseen | None:
    """Return why a slowdown is no verdict: no job is faster with stragglers. None where it is.

    Says whether the recording is at fault, or else the replay.
    """
    if slowdown >= LEAST_SLOWDOWN:
        return None
    sizes = f"DP {replayed.layout.dp} × PP {replayed.layout.pp}"
    signs = []
    if replayed.clamped:
        signs.append(f"{replayed.clamped:,} transfers end before they begin")
    if replayed.clocks.settings:
        signs.append("clocks were set")
    if replayed.impossible:
        signs.append(f"{len(replayed.impossible):,} durations are impossible")
    if replayed.recreated.total:
        signs.append(f"{replayed.recreated.total:,} operations are missing")
    why = (
        f"The recording is at fault, as far as is known: {', '.join(signs)}."
        if signs
        else f"Either the job is not divided into {sizes}, then give its sizes, or the replay "
        "is at fault, then please report it: nothing else in the recording explains it."
    )
    return Unseen(
        verdict=f"without stragglers the job would take longer, {slowdown:.2f}×, which cannot be",
        reason=f"Replayed without stragglers the job takes longer ({slowdown:.2f}×), which cannot "
        f"be. {why}",
        timed=False,
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
