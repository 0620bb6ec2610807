"""Divisions of one small job over four processes, and the duration of a block."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WORLD: Final = 4
BLOCKS: Final = 12
HIDDEN: Final = 64
SEQUENCE: Final = 16
BATCH: Final = 24
# Seconds of a block for a sequence: a sleep, because the processes share few processors.
FORWARD_S: Final = 0.005
BACKWARD_S: Final = 0.01
ROUNDS: Final = 7


@dataclass(frozen=True, slots=True)
class Division:
    """Pipelines, stages, and sequences of a microbatch."""

    dp: int
    pp: int
    microbatch: int

    @property
    def microbatches(self) -> int:
        """Return the microbatches of a pipeline."""
        return BATCH // self.dp // self.microbatch


DIVISIONS: Final = tuple(
    Division(*sizes)
    for sizes in ((4, 1, 1), (2, 2, 1), (1, 4, 1), (2, 2, 2), (1, 4, 2), (2, 2, 4), (1, 4, 4))
)
