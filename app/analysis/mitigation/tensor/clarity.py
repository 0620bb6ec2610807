"""Which changes of a rank's time one report is enough for, and which may be its noise.

A rank's noise is how far its time moves from one report to the next. A change that is far outside
of it needs no second report; where too few reports came, or the rank is unsteady, it does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.mitigation.tensor.group import STRAGGLES, FloatArray

BoolArray = NDArray[np.bool_]

# Reports that noise is taken from, and how many it takes at least.
LOOKED_BACK: Final = 32
FEWEST: Final = 9
# That many standard deviations of a change are outside of the noise.
FAR: Final = 6.0
# Three quarters of normal changes are within 1.15 standard deviations. That quarter which is not
# counted leaves room for stragglers that came and went meanwhile.
_QUANTILE: Final = 0.75
_WITHIN: Final = 1.1503


@dataclass(frozen=True, slots=True, eq=False)
class Clarity:
    """Changes from one report to the next that no noise explains.

    A rank that changed so for a single report not long ago is none of them: steps out of line must
    not change the job's work again and again.
    """

    # risen, fallen: (ranks,): ranks that became slower, and faster
    risen: BoolArray
    fallen: BoolArray

    @classmethod
    def nothing(cls, ranks: int) -> Clarity:
        """Return that nothing is clear."""
        return cls(np.zeros(ranks, dtype=np.bool_), np.zeros(ranks, dtype=np.bool_))


def clarity(earlier_s: FloatArray, time_s: FloatArray) -> Clarity:
    """Return what has changed clearly since the report before.

    Parameters
    ----------
    earlier_s : float64 array, shape (reports, ranks)
        T of the latest reports of the attempt without plans, oldest first, seconds.
    time_s : float64 array, shape (ranks,)
        T now.

    Examples
    --------
    >>> import numpy as np
    >>> steady = [[1.0, 1.0], [1.01, 1.0], [1.0, 0.99]]
    >>> clarity(np.array(3 * steady), np.array([1.3, 1.0])).risen.tolist()
    [True, False]
    """
    if len(earlier_s) < FEWEST:
        return Clarity.nothing(len(time_s))
    logs = np.log(earlier_s[-LOOKED_BACK:])
    changes = np.diff(logs, axis=0)
    noise = np.quantile(np.abs(changes), _QUANTILE, axis=0) / _WITHIN
    far = np.maximum(FAR * noise, np.log(STRAGGLES))
    now = np.log(time_s) - logs[-1]
    up, down = changes > far, changes < -far
    slow_once = (up[:-1] & down[1:]).any(axis=0)
    fast_once = (down[:-1] & up[1:]).any(axis=0)
    return Clarity((now > far) & ~slow_once, (now < -far) & ~fast_once)
