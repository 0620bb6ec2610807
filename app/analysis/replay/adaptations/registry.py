"""Registry of the adaptations of the dependency model, and their selection for a session."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.replay.adaptations.blocking_transfers import propose_blocking
from app.analysis.replay.adaptations.candidate import LEAST_GAIN, Draft, Proposal
from app.analysis.replay.adaptations.idle_transfers import without_idle_transfers, without_transfers
from app.analysis.replay.adaptations.kind import Adaptation, Name, Sign
from app.analysis.replay.adaptations.late_ends import propose_late_ends
from app.analysis.replay.adaptations.nested_collectives import propose_nested_collectives
from app.analysis.replay.adaptations.nested_gc import propose_nested_gc
from app.analysis.replay.adaptations.overlapping_steps import (
    propose_gathered_first,
    propose_overlapping_steps,
    propose_uneven_begins,
)
from app.analysis.replay.adaptations.posted_in_turn import propose_posted_in_turn
from app.analysis.replay.adaptations.program_order import propose_program_order
from app.analysis.replay.adaptations.regular_delays import propose_regular_delays
from app.analysis.replay.adaptations.signs import Precheck
from app.analysis.replay.adaptations.v_shaped_placement import find_placement
from app.analysis.replay.layout.dense import LaidOut
from app.analysis.replay.layout.pipeline import Route
from app.analysis.trace.model import Trace
from app.errors import UnanalyzableError


@dataclass(frozen=True, slots=True)
class _Step:
    """An adaptation of a session's draft: its name and the function that proposes it."""

    name: Name
    may: Callable[[Precheck], bool]  # whether the precheck leaves its sign possible
    # Function that returns the sign and the adapted draft; None if the draft lacks the sign.
    propose: Callable[[Draft], Proposal | None]


# Adaptations that are applied whenever their sign is present: a replay without them may match the
# recorded step time although its dependencies are wrong.
_STRUCTURAL: Final = (
    _Step(Name.NESTED_GC, Precheck.collects_garbage, propose_nested_gc),
    _Step(Name.NESTED_COLLECTIVES, Precheck.may_nest_collectives, propose_nested_collectives),
    _Step(Name.PROGRAM_ORDER, Precheck.has_no_pipeline, propose_program_order),
)
_LATE_ENDS: Final = _Step(Name.LATE_ENDS, Precheck.may_end_late, propose_late_ends)
_ON_TRIAL: Final = (
    _LATE_ENDS,
    _Step(Name.OVERLAPPING_STEPS, lambda _: True, propose_overlapping_steps),
    _Step(Name.UNEVEN_BEGINS, Precheck.has_no_pipeline, propose_uneven_begins),
    _Step(Name.GATHERED_FIRST, Precheck.gathers_chunks, propose_gathered_first),
    _Step(Name.BLOCKING_TRANSFERS, Precheck.may_block, propose_blocking),
    _Step(Name.POSTED_IN_TURN, Precheck.may_post_in_turn, propose_posted_in_turn),
    _Step(Name.REGULAR_DELAYS, Precheck.may_delay, propose_regular_delays),
)


@dataclass(frozen=True, slots=True, eq=False)
class AdaptedRows:
    """A trace before its layout, with the adaptations that its rows need."""

    trace: Trace
    # For each direction in which microbatches enter: its virtual stages (stage, chunk) in forward
    # order; empty if microbatches pass chunk after chunk
    routes: tuple[Route, ...]
    made: tuple[Adaptation, ...]


def adapt_rows(trace: Trace, without: Collection[Name]) -> AdaptedRows:
    """Return a trace with the adaptations that virtual stages need before they can be laid out."""
    made: list[Adaptation] = []
    routes: tuple[Route, ...] = ()
    virtual = trace.meta.sizes.vpp > 1
    placed = None if Name.PLACEMENT in without or not virtual else find_placement(trace)
    if placed is not None:
        routes = placed[0]
        made.append(Adaptation(Name.PLACEMENT, placed[1]))
    idle = (
        without_idle_transfers(trace, routes)
        if virtual and Name.IDLE_TRANSFERS not in without
        else None
    )
    if idle is not None:
        trace = idle[0]
        made.append(Adaptation(Name.IDLE_TRANSFERS, idle[1]))
    return AdaptedRows(trace, routes, tuple(made))


def adapt_laid_out(laid_out: LaidOut) -> tuple[Adaptation, ...]:
    """Return the adaptation for empty places in layouts; an empty tuple if no layout has any."""
    paddings = [group.padding for group in laid_out.groups if group.padding is not None]
    if not paddings:
        return ()
    counts = np.concatenate([padding.counts for padding in paddings])
    uneven = (counts != counts[:, :1]).any(axis=1)
    low, high = int(counts.min()), int(counts.max())
    where = (f"{low} to {high} microbatches in a step", f"{len(counts)} steps")
    return (Adaptation(Name.PADDED_MICROBATCHES, Sign(where, float(uneven.mean()))),)


def adapt_refused(
    rows: AdaptedRows, refused: UnanalyzableError, without: Collection[Name]
) -> AdaptedRows:
    """Adapt a trace that was refused because its transfers do not match.

    Raises
    ------
    UnanalyzableError
        The refusal of the trace, if no adaptation makes it usable.
    """
    name = Name.UNMATCHED_TRANSFERS
    adapted = None if name in without else without_transfers(rows.trace, refused)
    if adapted is None:
        raise refused
    return AdaptedRows(adapted[0], rows.routes, (*rows.made, Adaptation(name, adapted[1])))


def adapt(draft: Draft, without: Collection[Name]) -> tuple[Draft, tuple[Adaptation, ...]]:
    """Return the draft with all adaptations whose signs the session shows.

    Structural adaptations are always made. An adaptation on trial is kept if it reduces the
    discrepancy by `LEAST_GAIN`, alone or together with the adaptations tried just before it, and
    does not increase the discrepancy of the typical step by as much.

    Parameters
    ----------
    without : collection of Name
        Adaptations that are switched off.

    Returns
    -------
    draft : Draft
        The given draft if no adaptation was made.
    made : tuple of Adaptation
    """
    made: list[Adaptation] = []
    precheck = Precheck(draft.arranged[0])
    before: float | None = None
    for step in _STRUCTURAL:
        proposal = _proposed(step, draft, without) if step.may(precheck) else None
        if proposal is not None:
            before = draft.discrepancy if before is None else before
            after = proposal.draft.discrepancy
            made.append(Adaptation(step.name, proposal.sign, before, after))
            draft, before = proposal.draft, after
    best = _on_trial(draft, tuple(made), before, precheck, without)
    blocked = any(item.name is Name.BLOCKING_TRANSFERS for item in best[1])
    if blocked and max(best[0].off_recording) >= LEAST_GAIN:
        # Blocking transfers are tried first, since their receives also look as if posted in turn.
        others = {*without, Name.BLOCKING_TRANSFERS}
        unblocked = _on_trial(draft, tuple(made), before, precheck, others)
        if unblocked[0].off_recording.is_nearer_than(best[0].off_recording):
            return unblocked
    ends = _LATE_ENDS.may(precheck) and best[1] == tuple(made)
    if ends and best[0].discrepancy >= LEAST_GAIN:
        # Late ends of sends and overlapping steps change step times in opposite directions, so
        # either may fail to reduce the discrepancy unless both are applied.
        proposal = _proposed(_LATE_ENDS, draft, without)
        if proposal is not None:
            first = (*made, Adaptation(_LATE_ENDS.name, proposal.sign))
            after, others = proposal.draft.discrepancy, {*without, _LATE_ENDS.name}
            with_ends = _on_trial(proposal.draft, first, after, precheck, others)
            if with_ends[0].discrepancy <= best[0].discrepancy - LEAST_GAIN:
                return with_ends
    return best


def _on_trial(
    draft: Draft,
    structural: tuple[Adaptation, ...],
    before: float | None,
    precheck: Precheck,
    without: Collection[Name],
) -> tuple[Draft, tuple[Adaptation, ...]]:
    """Return the draft with the adaptations on trial that reduce its discrepancy; see `adapt`.

    Parameters
    ----------
    structural : tuple of Adaptation
        Adaptations that the draft already has.
    before : float or None
        Discrepancy of the draft, if already computed.
    without : collection of Name
        Adaptations that are switched off.
    """
    made = list(structural)
    tried, pending, nearest = draft, list[Adaptation](), before
    for step in _ON_TRIAL:
        if before is not None and before < LEAST_GAIN:
            # The remaining discrepancy is below `LEAST_GAIN`, so no further adaptation can reduce
            # it by that much.
            break
        # The precheck is valid only for the unadapted draft, since adaptations change times.
        allowed = made or pending or step.may(precheck)
        proposal = _proposed(step, tried, without) if allowed else None
        if proposal is None:
            continue
        if before is None or nearest is None:
            before = nearest = tried.discrepancy
        after = proposal.draft.discrepancy
        if after >= nearest or proposal.draft.off_recording.moves_away(tried.off_recording):
            continue
        pending.append(Adaptation(step.name, proposal.sign, nearest, after))
        tried, nearest = proposal.draft, after
        if before - after >= LEAST_GAIN:
            made += pending
            draft, before, pending = tried, after, []
    return draft, tuple(made)


def _proposed(step: _Step, draft: Draft, without: Collection[Name]) -> Proposal | None:
    """Return an adaptation's proposal; None if its sign is absent or dependencies form a cycle."""
    if step.name in without:
        return None
    try:
        return step.propose(draft)
    except UnanalyzableError:
        return None
