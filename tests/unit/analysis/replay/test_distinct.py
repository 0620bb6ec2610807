from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from app.analysis.replay.distinct import distinct


@pytest.mark.parametrize("values", [[], [3], [2, 2, 2], [5, -1, 5, 0, -1], [[1, 2], [2, 0]]])
def test_values_are_told_as_numpy_tells_them(values: list[int]) -> None:
    given = np.array(values, dtype=np.int64)

    assert distinct(given).tolist() == np.unique(given).tolist()


def test_no_masked_arrays_are_loaded() -> None:
    program = (
        "import sys, numpy as np\n"
        "from app.analysis.replay.distinct import distinct\n"
        "distinct(np.arange(3))\n"
        "sys.exit('numpy.ma' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0  # noqa: S603
