"""What the sizes of a job's layers say: bytes that a migration moves, and how finely it divides."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from app.analysis.mitigation.tensor.prediction import Place


class Kind(StrEnum):
    """What a column is, and with it what has to travel."""

    HIDDEN_UNIT = "hidden_unit"  # a row of W1, its bias and a column of W2 together
    COLUMN = "column"  # of W in a column-parallel layer
    ROW = "row"  # of W in a row-parallel layer


class Plans(StrEnum):
    """Which plans shed a layer's columns so."""

    STEP = "step"  # all that shed work in each step
    ONCE = "once"  # sticky: moved once


@dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a rank's layers of one kind."""

    kind: Kind
    width: int  # of a hidden unit the width of the model; else O, the rows of the local W
    tokens: int  # rows of X of a step: sequences × their length
    layers: int  # layers in which columns are shed
    value_bytes: int  # of a number that travels
    state_bytes: int  # of a parameter with its optimizer state
    # Units that a rank's columns go in there; None: as many as the plan's columns.
    units: int | None = None
    share: float = 1.0  # of a rank's multiplications; weighs layers against each other
    plans: Plans | None = None  # None: all of them

    @property
    def moves_for_good(self) -> bool:
        """Return whether columns that have moved need no traffic in a step: hidden units."""
        return self.kind is Kind.HIDDEN_UNIT

    @property
    def _parameters(self) -> int:
        """Return the parameters of a column in one layer."""
        return 2 * self.width + 1 if self.kind is Kind.HIDDEN_UNIT else self.width

    def step_bytes(self, columns: float) -> int:
        """Return what a step sends for migrated columns, and brings back.

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
        return round(self.layers * self.value_bytes * (fixed + each * columns))

    def once_bytes(self, columns: float) -> int:
        """Return what moving columns for good sends: parameters and optimizer state."""
        return round(self.layers * self.state_bytes * self._parameters * columns)


def shed_by(sizes: Sequence[Sizes], *, once: bool) -> list[Sizes]:
    """Return the layers of which sticky plans, or all others, shed columns."""
    plans = Plans.ONCE if once else Plans.STEP
    return [item for item in sizes if item.plans in (None, plans)]


def can_move(sizes: Sequence[Sizes]) -> bool:
    """Return whether columns can be moved once; where nothing is known, they can."""
    found = shed_by(sizes, once=True)
    return all(item.moves_for_good for item in found) and bool(found or not sizes)


def layers_of(sizes: Sequence[Sizes]) -> list[tuple[object, ...]]:
    """Return what stays while a model does; tokens and optimizer states come and go."""
    return [(item.kind, item.width, item.layers, item.units, item.plans) for item in sizes]


def extra_bytes(sizes: Sequence[Sizes], columns: int, of: int, *, once: bool) -> int:
    """Return what migrating some of a rank's columns sends, in a step or once.

    Parameters
    ----------
    columns, of : int
        Columns that migrate, and K.
    """
    total = 0
    for item in shed_by(sizes, once=once):
        here = columns if item.units is None else columns * item.units / of
        total += item.once_bytes(here) if once else item.step_bytes(here)
    return total


def places(sizes: Sequence[Sizes], *, once: bool) -> tuple[Place, ...]:
    """Return where columns go in units of their own; none where the sizes do not say for all."""
    found = shed_by(sizes, once=once)
    known = [Place(item.units, item.share) for item in found if item.units is not None]
    return tuple(known) if len(known) == len(found) else ()
