"""The healthy jobs of a fleet: as many GPUs as the jobs of the paper, divided as Megatron-LM would.

Of the paper's jobs 31.7 % have at least 256 GPUs, 18.3 % at least 512, 3.6 % at least 5,000, and
none has under 128; 21.1 % have no pipeline (sections 3.1 and 5.2).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Final

import numpy as np

from app.analysis.synthesis.job import USUAL_OP_TYPES, JobModel, Profiler, Schedule
from app.analysis.synthesis.random_jobs import draw_costs
from app.analysis.trace.model import SEPARATE_ALL_REDUCE, Sizes

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from app.analysis.synthesis.random_jobs import Needs


@dataclass(frozen=True, slots=True)
class Scale:
    """A share of the jobs and the numbers of GPUs that they have."""

    share: float
    gpus: tuple[int, ...]


SCALES: Final = (
    Scale(0.683, (128, 128, 128, 160, 192)),
    Scale(0.134, (256, 256, 320, 384)),
    Scale(0.147, (512, 512, 640, 768, 1024, 1024, 1536, 2048, 4096)),
    Scale(0.036, (5120, 6144, 8192, 10240)),
)
WITHOUT_PIPELINE: Final = 0.211
_STAGES: Final = (2, 3, 4, 4, 6, 8, 8, 12, 16)
_TENSOR_RANKS: Final = (4, 8, 8)
_CONTEXT_RANKS: Final = (1, 1, 1, 2)
_INTERLEAVED: Final = 0.3
_FEWEST_MICROBATCHES: Final = 4
_FEWEST_STEPS, _MOST_STEPS = 6, 24
# Recorded operations, about: beyond the first number steps are left out, down to the fewest;
# beyond the second the GPUs are divided anew.
_OPERATIONS, _MOST_OPERATIONS = 60_000, 400_000


def draw_gpus(quantiles: NDArray[np.float64]) -> list[int]:
    """Return the number of GPUs at each quantile of the jobs by size."""
    every = [(scale.share / len(scale.gpus), gpus) for scale in SCALES for gpus in scale.gpus]
    ends = np.cumsum([share for share, _ in every])
    return [every[min(int(n), len(every) - 1)][1] for n in np.searchsorted(ends, quantiles)]


def draw_fleet_job(
    gpus: int, needs: Needs, rng: np.random.Generator, *, pipeline: bool
) -> JobModel:
    """Return a random healthy job of that many GPUs that has what is needed."""
    while True:
        job = _draw(gpus, needs, rng, pipeline=pipeline)
        if job is not None:
            return job


def _draw(gpus: int, needs: Needs, rng: np.random.Generator, *, pipeline: bool) -> JobModel | None:
    """Return a job, or None where GPUs do not divide or it would be too long a trace."""
    tp, cp = int(rng.choice(_TENSOR_RANKS)), int(rng.choice(_CONTEXT_RANKS))
    pp = int(rng.choice(_STAGES)) if pipeline else 1
    dp, rest = divmod(gpus, tp * cp * pp)
    if rest or pp < needs.pp or dp < max(needs.dp, 2) or dp * pp < needs.workers:
        return None
    schedule, types, vpp = Schedule.ONE_F_ONE_B, USUAL_OP_TYPES, 1
    # Megatron-LM interleaves from three stages on.
    if pp > 2 and (needs.interleaved or rng.random() < _INTERLEAVED):  # noqa: PLR2004 - said
        schedule, types, vpp = Schedule.INTERLEAVED, types | {SEPARATE_ALL_REDUCE}, 2
    fewest = math.ceil(_FEWEST_MICROBATCHES / pp)
    microbatches = pp * int(rng.integers(fewest, fewest + (3 if pp > 1 else 13)))
    steps = int(rng.integers(_MOST_STEPS // 2, _MOST_STEPS + 1))
    in_step = dp * pp * microbatches * vpp * (6 if pp > 1 else 2)
    in_step += dp * pp * microbatches * vpp * 4 * tp if needs.tensor_ranks else 0
    steps = max(min(steps, _OPERATIONS // in_step), _FEWEST_STEPS)
    if steps * in_step > _MOST_OPERATIONS:
        return None
    costs = draw_costs(rng)
    return JobModel(
        sizes=Sizes(dp=dp, pp=pp, tp=tp, cp=cp, vpp=vpp),
        microbatches=microbatches,
        steps=steps,
        schedule=schedule,
        # The network has room to spare (section 3.1).
        costs=replace(costs, grads_ns=costs.grads_ns / 2, link_noise=costs.link_noise / 2),
        op_types=types,
        buckets=int(rng.integers(1, 3)),
        profiler=Profiler(tensor_ranks=needs.tensor_ranks),
        name=f"job-{int(rng.integers(1_000_000)):06d}",
    )
