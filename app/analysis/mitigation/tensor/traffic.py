"""How many bytes a migration moves, from the sizes of the layers."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What a column is, and with it what has to travel."""

    HIDDEN_UNIT = "hidden_unit"  # a row of W1, its bias and a column of W2 together
    COLUMN = "column"  # of W in a column-parallel layer
    ROW = "row"  # of W in a row-parallel layer


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a rank's layers.

    Parameters
    ----------
    kind : Kind
    width : int
        Of a hidden unit the width of the model; else O, the rows of the local W.
    tokens : int
        Rows of X of a step: sequences × their length.
    layers : int
        Layers in which columns are shed.
    value_bytes : int
        Of a number that travels.
    state_bytes : int
        Of a parameter with its optimizer state.
    """

    kind: Kind
    width: int
    tokens: int
    layers: int
    value_bytes: int
    state_bytes: int

    @property
    def moves_for_good(self) -> bool:
        """Return whether columns that have moved need no traffic in a step: hidden units."""
        return self.kind is Kind.HIDDEN_UNIT

    @property
    def _parameters(self) -> int:
        """Return the parameters of a column in one layer."""
        return 2 * self.width + 1 if self.kind is Kind.HIDDEN_UNIT else self.width

    def step_bytes(self, columns: int) -> int:
        """Return what a step sends for so many migrated columns, and brings back.

        A hidden unit sends parameters and brings their gradients back; what it computes rides the
        all-reduce. Columns of a column-parallel layer also need dY and bring back their part of Y,
        which do not grow with the columns; those of a row-parallel one X[:, m], and dX[:, m] back.
        All is counted once, however many ranks a broadcast reaches.
        """
        if columns == 0:
            return 0
        each, fixed = 2 * self._parameters, 0
        if self.kind is Kind.COLUMN:
            fixed = 2 * self.tokens * self.width
        elif self.kind is Kind.ROW:
            each += 2 * self.tokens
        return self.layers * self.value_bytes * (fixed + each * columns)

    def once_bytes(self, columns: int) -> int:
        """Return what moving so many columns for good sends: parameters and optimizer state."""
        return self.layers * self.state_bytes * self._parameters * columns
