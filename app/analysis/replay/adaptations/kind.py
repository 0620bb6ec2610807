"""Names, texts and signs of the adaptations of the paper's dependency model to a job.

The module imports nothing heavy, because the command line loads the names before any analysis.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Name(StrEnum):
    """Names of the adaptations, in the order in which a session tries them."""

    PLACEMENT = "v_shaped_placement"
    NESTED_GC = "nested_gc"
    NESTED_COLLECTIVES = "nested_collectives"
    PROGRAM_ORDER = "program_order"
    PADDED_MICROBATCHES = "padded_microbatches"
    IDLE_TRANSFERS = "idle_transfers"
    UNMATCHED_TRANSFERS = "unmatched_transfers"
    LATE_ENDS = "late_ends"
    OVERLAPPING_STEPS = "overlapping_steps"
    UNEVEN_BEGINS = "uneven_begins"
    GATHERED_FIRST = "gathered_first"
    BLOCKING_TRANSFERS = "blocking_transfers"
    POSTED_IN_TURN = "posted_in_turn"
    REGULAR_DELAYS = "regular_delays"


SENTENCES: Final = {
    Name.PLACEMENT: (
        "Microbatches turn back at the last stage, or enter at both ends: each is followed"
    ),
    Name.NESTED_GC: "Garbage is collected inside forwards: it is replayed as part of them, once",
    Name.NESTED_COLLECTIVES: (
        "Collectives lie inside computations: waiting for peers there is not computing"
    ),
    Name.PROGRAM_ORDER: "Ranks do one thing at a time: each operation follows the one before it",
    Name.PADDED_MICROBATCHES: (
        "DP ranks run different numbers of microbatches: each is replayed with its own"
    ),
    Name.IDLE_TRANSFERS: "Recorded transfers that no neighbor answers are left out",
    Name.UNMATCHED_TRANSFERS: (
        "Recorded transfers fit no neighbor: all are left out, computations hand over directly"
    ),
    Name.LATE_ENDS: "Sends are recorded until the job waits for them: they end with their receives",
    Name.OVERLAPPING_STEPS: "Steps overlap: a stage begins the next one when it has ended its own",
    Name.UNEVEN_BEGINS: "Ranks begin steps apart: each goes on from where it ended the one before",
    Name.GATHERED_FIRST: "Parameters of all chunks are gathered before a stage's first forward",
    Name.BLOCKING_TRANSFERS: "Transfers block: launches follow them",
    Name.POSTED_IN_TURN: (
        "Receives are posted in turn: each follows the computation before it, of either direction"
    ),
    Name.REGULAR_DELAYS: "Launches regularly take time: the replay takes it too",
}


@dataclass(frozen=True, slots=True)
class Sign:
    """Evidence in a recording that the job differs from the paper's dependency model."""

    where: tuple[str, ...]  # where in the job, in words: op types and stages, links, microbatches
    confidence: float  # share of the cases looked at that show it, 0 to 1


@dataclass(frozen=True, slots=True)
class Adaptation:
    """An adaptation made to a session's replay, with its sign and its effect on the discrepancy."""

    name: Name
    sign: Sign
    # before, after: discrepancy without and with the adaptation; None if no replay is possible
    # without it, or if its sign alone decides
    before: float | None = None
    after: float | None = None
