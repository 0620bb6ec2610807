"""Types of arrays, and units of time, that all rooms of the analysis share."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
BoolArray = NDArray[np.bool_]

# Seconds in a nanosecond.
NS: Final = 1e-9
# Nanoseconds in a second.
NS_A_SECOND: Final = 1e9
