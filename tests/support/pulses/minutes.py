"""Minutes of a pulse in the database, as a worker would have stored them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
from sqlalchemy import select, update

from app.analysis.pulse.packing import Places
from app.analysis.pulse.rollups import THOUSAND, Sums, to_bytes
from app.jobs.models import Job
from app.pulse.keep import MINUTE, NAMED
from app.pulse.models import PulseSpan, PulseState

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container
    from app.platform.database.unit_of_work import UnitOfWork

_STEPS: Final = 20
_HOST_RANKS: Final = 8
_NONE: Final = np.empty(0, np.int64)


@dataclass(frozen=True, slots=True)
class Minutes:
    """A job in which one rank computes longer in the last minutes.

    Parameters
    ----------
    until_ago : int
        Minutes from the last minute to now.
    stages : int
        Pipeline stages; ranks of a stage are consecutive.
    """

    ranks: int
    minutes: int
    slow: int = 0
    slow_minutes: int = 0
    factor: float = 1.4
    step_s: float = 2.0
    until_ago: int = 0
    stages: int = 1

    def keep(self, container: Container, job: str) -> None:
        """Replace the minutes of an existing job by these."""
        with container.uow() as tx:
            job_id = tx.session.execute(select(Job.id).where(Job.name == job)).scalar_one()
            for row in tx.session.execute(
                select(PulseSpan).where(PulseSpan.job_id == job_id)
            ).scalars():
                tx.session.delete(row)
            tx.session.flush()
            tx.session.add_all(self._rows(tx, job_id))
            tx.session.execute(
                update(PulseState)
                .where(PulseState.job_id == job_id)
                .values(places=self._places().to_bytes())
            )

    def _places(self) -> Places:
        ranks = np.arange(self.ranks)
        hosts = {rank: f"node-{rank // _HOST_RANKS:03}" for rank in ranks.tolist()}
        return Places.of(ranks, ranks * self.stages // self.ranks, hosts)

    def _rows(self, tx: UnitOfWork, job_id: int) -> Iterator[PulseSpan]:
        last = tx.now.astimezone(UTC).replace(second=0, microsecond=0)
        for ago in range(self.until_ago, self.minutes):
            is_slow = ago < self.slow_minutes
            ratios = np.full(self.ranks, _STEPS * THOUSAND)
            if is_slow:
                ratios[self.slow] = int(ratios[self.slow] * self.factor)
            sums = self._sums(ratios)
            slowest = sums.slowest(NAMED)
            step_s = self.step_s * (self.factor if is_slow else 1 + 0.01 * np.sin(ago))
            yield PulseSpan(
                job_id=job_id,
                attempt=1,
                seconds=MINUTE,
                start=last - timedelta(minutes=ago),
                ranks=self.ranks,
                steps=_STEPS,
                busy_s=_STEPS * step_s,
                step_median_s=step_s,
                step_p95_s=1.02 * step_s,
                step_worst_s=1.05 * step_s,
                compute_median_s=0.7 * self.step_s,
                compute_p95_s=0.75 * self.step_s,
                tokens=_STEPS * self.ranks * 4_096,
                lost_gpu_s=self.ranks * (0.2 if is_slow else 0.01) * 60,
                worst_ranks=[rank for rank, _ in slowest],
                worst_ratios=[ratio for _, ratio in slowest],
                worst_hosts=[f"node-{rank // _HOST_RANKS:03}" for rank, _ in slowest],
                worst_gpus=[rank % _HOST_RANKS for rank, _ in slowest],
                sums=to_bytes(sums),
            )

    def _sums(self, ratios: np.ndarray[tuple[int], np.dtype[np.int64]]) -> Sums:
        ranks = np.arange(self.ranks)
        return Sums(
            steps=_STEPS,
            step_ns=0,
            worst_ns=0,
            tokens=0,
            lost_ns=0,
            rank_ns=0,
            ranks=ranks,
            ratios=ratios,
            counted=np.full(self.ranks, _STEPS),
            step_classes=_NONE,
            step_counts=_NONE,
            compute_classes=_NONE,
            compute_counts=_NONE,
        )
