"""What Arrow's arrays hold, as NumPy's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray


def as_numpy(array: pa.Array[Any]) -> NDArray[Any]:
    """Return an array's values, where they are if that is possible.

    Arrow's own way imports pandas where that is installed, which takes longer than reading and
    replaying a small trace.
    """
    plain = pa.types.is_integer(array.type) or pa.types.is_floating(array.type)
    if plain and not array.null_count:
        return np.from_dlpack(array)
    values: NDArray[Any] = array.to_numpy(zero_copy_only=False)
    return values
