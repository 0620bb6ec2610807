"""1F1B, executed event by event.

Stage s of S first runs min(N_b, S − s − 1) forwards, then alternates forward and backward, then
runs the remaining backwards. A stage computes one thing at a time. What it produces goes over
the link to its neighbor, one microbatch after another and during the computation; each direction
has a link of its own.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from app.analysis.compiled import compiled

if TYPE_CHECKING:
    from collections.abc import Sequence

IntArray = NDArray[np.int64]

FORWARD = 0
BACKWARD = 1


@dataclass(frozen=True, slots=True, eq=False)
class SimulatedTimeline:
    """When everything ran, in ps since the iteration's start.

    `start_ps` and `end_ps` have the shape (2, stages, microbatches): forward, backward.
    """

    start_ps: IntArray
    end_ps: IntArray

    @property
    def iteration_ps(self) -> int:
        """Return when the last computation ended."""
        return int(self.end_ps.max())

    def busy_ps(self) -> IntArray:
        """Return how long each stage computed."""
        busy: IntArray = (self.end_ps - self.start_ps).sum(axis=(0, 2))
        return busy


def simulate(
    forward_ps: Sequence[int],
    backward_ps: Sequence[int],
    send_forward_ps: Sequence[int],
    send_backward_ps: Sequence[int],
    microbatches: int,
) -> SimulatedTimeline:
    """Execute an iteration.

    Parameters
    ----------
    forward_ps, backward_ps : sequence of int
        Time of each stage's computations.
    send_forward_ps, send_backward_ps : sequence of int
        Time of a transfer between stage i and i + 1, in each direction.
    """
    start, end = execute(
        np.array(forward_ps, dtype=np.int64),
        np.array(backward_ps, dtype=np.int64),
        np.array(send_forward_ps, dtype=np.int64),
        np.array(send_backward_ps, dtype=np.int64),
        microbatches,
    )
    return SimulatedTimeline(start, end)


@compiled  # pragma: no cover - coverage does not see compiled code
def execute(
    forward: IntArray,
    backward: IntArray,
    send_forward: IntArray,
    send_backward: IntArray,
    microbatches: int,
) -> tuple[IntArray, IntArray]:
    """Return when each computation starts and ends: see `SimulatedTimeline`."""
    stages = forward.shape[0]
    start = np.zeros((2, stages, microbatches), dtype=np.int64)
    end = np.zeros((2, stages, microbatches), dtype=np.int64)
    done = np.zeros((2, stages), dtype=np.int64)
    free = np.zeros(stages, dtype=np.int64)
    # when the microbatch is there to compute with; the first stage has its batch from the start
    arrives = np.full((2, stages, microbatches), -1, dtype=np.int64)
    arrives[0, 0, :] = 0
    link_free = np.zeros((2, stages), dtype=np.int64)
    remaining = 2 * stages * microbatches
    while remaining:
        for s in range(stages):
            warm_up = min(microbatches, stages - s - 1)
            while True:
                f, b = done[0, s], done[1, s]
                if b == microbatches:
                    break
                direction = 0 if f < microbatches and f - b <= warm_up else 1
                m = f if direction == 0 else b
                ready = arrives[direction, s, m]
                if ready < 0:
                    break
                begins = max(ready, free[s])
                ends = begins + (forward[s] if direction == 0 else backward[s])
                start[direction, s, m], end[direction, s, m] = begins, ends
                free[s] = ends
                done[direction, s] += 1
                remaining -= 1
                if direction == 0 and s == stages - 1:
                    arrives[1, s, m] = ends
                elif direction == 0:
                    link_free[0, s] = max(link_free[0, s], ends) + send_forward[s]
                    arrives[0, s + 1, m] = link_free[0, s]
                elif s > 0:
                    link_free[1, s] = max(link_free[1, s], ends) + send_backward[s - 1]
                    arrives[1, s - 1, m] = link_free[1, s]
    return start, end
