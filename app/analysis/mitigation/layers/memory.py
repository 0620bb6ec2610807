"""How many layers a stage can hold, as far as the metadata say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from app.analysis.mitigation.layers.costs import LayerCosts
from app.analysis.replay.layout.dense import IntArray

KEY: Final = "max_layers"
_ANY: Final = 1 << 30


@dataclass(frozen=True, slots=True, eq=False)
class Room:
    """The most layers that each stage can hold."""

    stage: IntArray  # (places,): stage of each place of the model
    layers: IntArray  # (stages,): the most that fits
    known: bool  # whether anybody said so

    def most(self, place: int) -> int:
        """Return the most layers of one chunk."""
        return int(self.layers[self.stage[place]])


def room_of(extra: Mapping[str, Any], costs: LayerCosts) -> Room:
    """Return what the metadata of a session say of the memory of its stages.

    ``max_layers`` is a number, or a list with one for each stage. A stage that holds more today
    holds what it holds.
    """
    stage = np.array([stage for stage, _ in costs.places])
    stages = int(stage.max()) + 1
    given = extra.get(KEY)
    numbers = list(given) if isinstance(given, Sequence) and not isinstance(given, str) else None
    if numbers is None:
        numbers = [given] * stages
    known = len(numbers) == stages and all(
        isinstance(n, int) and not isinstance(n, bool) and n > 0 for n in numbers
    )
    layers = np.array(numbers if known else [_ANY] * stages, dtype=np.int64)
    today = np.bincount(stage, weights=costs.layers, minlength=stages).astype(np.int64)
    return Room(stage, np.maximum(layers, today), known)
