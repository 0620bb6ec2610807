"""Steps that something strikes again and again, at even intervals."""

from __future__ import annotations

from collections.abc import Sequence
from math import gcd
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.replay.layout.dense import IntArray

_NAMED: Final = 6
# Any two steps are some number apart: of fewer an interval is no period.
FEWEST: Final = 3


def interval(steps: IntArray, struck: NDArray[np.bool_]) -> int:
    """Return how many steps apart those are that are struck, or what divides that; 0 if not evenly.

    Every recorded step at that interval is struck as well. Of a single one nothing is known.

    Parameters
    ----------
    steps : int64 array, shape (steps,)
        Those of which it is known, ascending.
    struck : bool array, shape (steps,)
    """
    if struck.sum() < 2:  # noqa: PLR2004 - a pair
        return 0
    apart = gcd(*np.diff(steps[struck]).tolist())
    evenly = apart > 1 and (struck == (steps % apart == steps[struck][0] % apart)).all()
    return apart if evenly else 0


def listed(steps: Sequence[int]) -> str:
    """Return the first ones of some steps in words.

    Examples
    --------
    >>> listed([12])
    'step 12'
    >>> listed([12, 20, 28])
    'steps 12, 20, 28'
    """
    text = ", ".join(map(str, steps[:_NAMED])) + ("…" if len(steps) > _NAMED else "")
    return f"step {text}" if len(steps) == 1 else f"steps {text}"
