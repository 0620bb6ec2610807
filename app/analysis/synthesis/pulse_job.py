"""Synthetic job for pulses: the values of all ranks and steps, computed on whole arrays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    NO_BEAT,
    Pulses,
)
from app.analysis.pulse.notices import NoticeKind
from app.analysis.quantities import BoolArray, FloatArray, IntArray

_START_NS: Final = 1_790_000_000_000_000_000
_USUAL_TOKENS: Final = 32_768


@dataclass(frozen=True, slots=True)
class PulseDials:
    """Sizes, durations and noise of a healthy job.

    Parameters
    ----------
    dp, pp : int
        Replicas and stages; rank = stage × dp + replica.
    host_ranks : int
        Ranks a host.
    noise : float
        Standard deviation of the logarithm of computing, drawn for each rank and step.
    offsets : float
        Standard deviation of the logarithm of a rank's constant speed.
    lengths : float
        Standard deviation of the logarithm of tokens, drawn for each replica and step.
    constant, squared : float
        Shares of usual computing that do not depend on tokens, and that grow with their square.
    tokens_known : bool
        Whether rows contain tokens.
    """

    dp: int = 8
    pp: int = 1
    steps: int = 400
    step_s: float = 1.0
    host_ranks: int = 8
    noise: float = 0.01
    offsets: float = 0.005
    lengths: float = 0.0
    constant: float = 0.0
    squared: float = 0.0
    tokens_known: bool = True

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.dp * self.pp

    def work(self, tokens: FloatArray | IntArray) -> FloatArray:
        """Return computing at these tokens to that at the usual number."""
        ratio = tokens / _USUAL_TOKENS
        if not self.constant and not self.squared:
            return np.asarray(ratio)
        linear = 1 - self.constant - self.squared
        return np.asarray(self.constant + linear * ratio + self.squared * ratio**2)


@dataclass(frozen=True, slots=True)
class PulseTruth:
    """A fault of a synthetic job that detection should notice.

    Parameters
    ----------
    ranks : tuple of int
        Ranks to blame; empty if no rank is to blame.
    from_step, end_step : int
        First slow step, and first normal step after it; `end_step` is None if the fault lasts.
    """

    kind: NoticeKind
    ranks: tuple[int, ...]
    from_step: int
    end_step: int | None
    factor: float


@dataclass(slots=True)
class PulseJob:
    """Times of a job by step and rank, nanoseconds; faults and events change them in place.

    Parameters
    ----------
    computing : float64[steps, ranks]
        Computing without garbage collection.
    data, optimizer, collecting, saving : float64[steps, ranks]
    network : float64[steps]
        Collectives of a step.
    gap : float64[steps]
        Time before a step that is no part of it.
    missing : bool[steps, ranks]
        Rows that are never sent.
    """

    dials: PulseDials
    computing: FloatArray
    tokens: IntArray
    data: FloatArray
    optimizer: FloatArray
    collecting: FloatArray
    saving: FloatArray
    network: FloatArray
    gap: FloatArray
    missing: BoolArray
    attempt: int = 1
    first_step: int = 0
    start_ns: int = _START_NS

    @classmethod
    def healthy(cls, dials: PulseDials, rng: np.random.Generator) -> PulseJob:
        """Return a random job without faults or events."""
        steps, world = dials.steps, dials.world
        shape = (steps, world)
        replica = np.arange(world) % dials.dp
        lengths = np.exp(dials.lengths * rng.normal(size=(steps, dials.dp)))[:, replica]
        tokens = np.maximum(1, (_USUAL_TOKENS * lengths)).astype(np.int64)
        load = np.repeat(rng.uniform(0.85, 1.0, dials.pp), dials.dp)
        usual = load * np.exp(dials.offsets * rng.normal(size=world))
        noise = np.exp(dials.noise * rng.normal(size=shape))
        step_ns = dials.step_s * 1e9
        small = np.exp(0.1 * rng.normal(size=shape))
        return cls(
            dials,
            computing=0.7 * step_ns * usual * dials.work(tokens) * noise,
            tokens=tokens,
            data=0.01 * step_ns * small,
            optimizer=0.03 * step_ns * small**0.2,
            collecting=np.zeros(shape),
            saving=np.zeros(shape),
            network=0.12 * step_ns * np.exp(0.02 * rng.normal(size=steps)),
            gap=np.zeros(steps),
            missing=np.zeros(shape, np.bool_),
        )

    def lengthen(self, factors: FloatArray) -> None:
        """Multiply tokens by factors that broadcast to [steps, ranks], and computing as they do."""
        tokens = self.tokens * factors
        self.computing *= self.dials.work(tokens) / self.dials.work(self.tokens)
        self.tokens = tokens.astype(np.int64)

    @property
    def step_ns(self) -> FloatArray:
        """Return the time of each step, that of its slowest rank; float64[steps]."""
        own = self.computing + self.data + self.optimizer + self.collecting + self.saving
        return np.asarray(own.max(axis=1) + self.network)

    def rows(self) -> Pulses:
        """Return the pulse rows of all ranks, sorted by time."""
        steps, world = self.computing.shape
        step_ns = self.step_ns
        ends = self.start_ns + np.cumsum(step_ns + self.gap)
        place = np.arange(world)
        # Ranks end a step a few microseconds after one another.
        time_ns = ends[:, None] + place * 2_000.0
        wait = step_ns[:, None] - (
            self.computing + self.data + self.optimizer + self.collecting + self.saving
        )
        sent = ~self.missing.ravel()

        def column(values: FloatArray | IntArray) -> IntArray:
            wide = np.broadcast_to(values, (steps, world)).ravel()
            return np.round(wide).astype(np.int64)[sent]

        tokens = self.tokens if self.dials.tokens_known else np.zeros_like(self.tokens)
        count = int(sent.sum())
        return Pulses(
            attempt=np.full(count, self.attempt),
            step=column(self.first_step + np.arange(steps)[:, None]),
            rank=column(place),
            dp_rank=column(place % self.dials.dp),
            pp_rank=column(place // self.dials.dp),
            time_ns=column(time_ns),
            step_ns=column(step_ns[:, None]),
            compute_ns=column(self.computing + self.collecting),
            wait_ns=column(wait),
            data_ns=column(self.data),
            optimizer_ns=column(self.optimizer),
            gc_ns=column(self.collecting),
            tokens=column(tokens),
            phase=np.full(count, NO_BEAT),
            since_ns=np.zeros(count, np.int64),
        )

    @property
    def hosts(self) -> dict[int, str]:
        """Return the host name of each rank."""
        each = self.dials.host_ranks
        return {rank: f"node-{rank // each:03d}" for rank in range(self.dials.world)}
