"""Distinct values, as `numpy.unique` finds them.

Asked for nothing besides, NumPy's loads its masked arrays first, which takes a tenth of the time of
a small analysis.
"""

from __future__ import annotations

from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

Scalar = TypeVar("Scalar", bound=np.generic)


def distinct(values: NDArray[Scalar]) -> NDArray[Scalar]:
    """Return each of the values once, in order; none of them is NaN."""
    in_order = np.sort(values, axis=None)
    first = np.ones(len(in_order), dtype=bool)
    np.not_equal(in_order[1:], in_order[:-1], out=first[1:])
    return in_order[first]
