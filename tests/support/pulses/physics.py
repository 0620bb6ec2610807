"""Pulses of pipelines with noise like that of hosts: heavy tails, memory, heat, time of day.

Nothing is taken from the synthesis; results are plain columns.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Columns = dict[str, NDArray[np.int64]]
HOST_RANKS = 8
_START_NS = 1_770_000_000_000_000_000


@dataclass(frozen=True, slots=True)
class Habits:
    """The behavior of a healthy job."""

    replicas: int
    stages: int
    steps: int
    seconds: float
    jitter: float
    memory: float
    wander: float
    own: float
    warmth: float
    lengths: float
    tokens_told: bool
    hiccups: float
    gc_every: int
    gc_in_compute: bool
    save_every: int
    evaluate_every: int
    bursts: bool

    @property
    def world(self) -> int:
        """Return the number of ranks."""
        return self.replicas * self.stages


def draw_habits(rng: np.random.Generator, steps: int, *, lengths: bool | None = None) -> Habits:
    """Draw the behavior of a healthy job."""
    replicas, stages = [(8, 1), (16, 1), (8, 2), (4, 4), (16, 4), (32, 2), (64, 1)][rng.integers(7)]
    vary = bool(rng.random() < 0.4) if lengths is None else lengths
    return Habits(
        replicas=replicas,
        stages=stages,
        steps=steps,
        seconds=float(rng.choice([0.2, 1.0, 1.0, 4.0])),
        jitter=float(rng.uniform(0.003, 0.012)),
        memory=float(rng.uniform(0.5, 0.95)),
        wander=float(rng.uniform(0.002, 0.012)),
        own=float(rng.uniform(0.0, 0.018)),
        warmth=float(rng.uniform(0.0, 0.015)),
        lengths=0.25 if vary else 0.0,
        tokens_told=bool(rng.random() < 0.6),
        hiccups=float(10 ** rng.uniform(-4, -2.3)),
        gc_every=int(rng.integers(15, 90)),
        gc_in_compute=bool(rng.random() < 0.5),
        save_every=int(rng.integers(50, 400)),
        evaluate_every=int(rng.integers(100, 600)),
        bursts=bool(rng.random() < 0.5),
    )


def _remembering(rng: np.random.Generator, shape: tuple[int, int], memory: float) -> Floats:
    """Return autocorrelated noise of unit variance: an AR(1) process over steps."""
    fresh = rng.normal(size=shape) * np.sqrt(1 - memory**2)
    noise = np.empty(shape)
    noise[0] = rng.normal(size=shape[1])
    for step in range(1, shape[0]):
        noise[step] = memory * noise[step - 1] + fresh[step]
    return noise


@dataclass(frozen=True, slots=True)
class Slow:
    """A fault: a factor on the computing of some ranks, or on the network."""

    ranks: tuple[int, ...]
    begin: int
    factor: float
    in_network: bool = False
    growing: bool = False


def pulse(habits: Habits, rng: np.random.Generator, wrong: Slow | None = None) -> Columns:
    """Return the columns of a job, ordered by time."""
    shape = habits.steps, habits.world
    stage = np.arange(habits.world) // habits.replicas
    replica = np.arange(habits.world) % habits.replicas
    step = np.arange(habits.steps)[:, None]
    load = rng.uniform(0.7, 1.0, habits.stages)[stage]
    own = np.exp(habits.own * rng.normal(size=habits.world))
    tails = np.clip(rng.standard_t(3, size=shape), -12, 12) * habits.jitter
    wander = habits.wander * _remembering(rng, shape, habits.memory)
    warm = habits.warmth * np.sin(
        2 * np.pi * (step / rng.uniform(300, 2500, habits.world) + rng.random(habits.world))
    )
    day = 0.03 * np.sin(2 * np.pi * step * habits.seconds / 86_400 + rng.uniform(0, 6.28))
    length = np.exp(habits.lengths * rng.normal(size=(habits.steps, habits.replicas)))[:, replica]
    # A part of the work does not depend on lengths, and attention grows with their square.
    work = 0.1 + 0.75 * length + 0.15 * length**2
    compute = 0.75e9 * habits.seconds * load * own * work * np.exp(tails + wander + warm + day)
    hit = rng.random(shape) < habits.hiccups
    compute[hit] *= rng.uniform(1.1, 3.0, int(hit.sum()))
    compute[:4] *= np.array([20.0, 3.0, 1.5, 1.2])[:, None]
    if wrong is not None and not wrong.in_network:
        growth = (
            np.linspace(1, wrong.factor, habits.steps - wrong.begin)[:, None]
            if wrong.growing
            else wrong.factor
        )
        compute[wrong.begin :, list(wrong.ranks)] *= growth
    collect = np.where(
        (step + rng.integers(0, habits.gc_every, habits.world)) % habits.gc_every == 0,
        habits.seconds * 1e9 * rng.uniform(0.03, 0.2),
        0.0,
    )
    data = 0.004e9 * habits.seconds * rng.gamma(3, 1, shape)
    if habits.bursts:
        for begin in rng.integers(0, habits.steps, 1 + habits.steps // 700):
            data[begin : begin + rng.integers(1, 12)] += habits.seconds * 1e9 * rng.uniform(0.1, 1)
    optimizer = np.full(shape, 0.02e9 * habits.seconds)
    network = 0.1e9 * habits.seconds * rng.gamma(40, 1 / 40, habits.steps)
    if wrong is not None and wrong.in_network:
        network[wrong.begin :] += (wrong.factor - 1) * habits.seconds * 1e9
    # The slowest stage of a pipeline repeats for each microbatch; the others add one pass.
    busy = (compute + collect + data).reshape(habits.steps, habits.stages, habits.replicas)
    count = 8
    pipeline = busy.max(axis=1) * (count - 1) / count + busy.sum(axis=1) / count
    whole = pipeline.max(axis=1) + network + optimizer[:, 0]
    saving = np.zeros(habits.steps)
    saving[habits.save_every :: habits.save_every] = habits.seconds * 1e9 * rng.uniform(1, 10)
    pause = np.zeros(habits.steps)
    pause[habits.evaluate_every :: habits.evaluate_every] = 1e9 * rng.uniform(20, 200)
    whole += saving
    end = _START_NS + np.cumsum(whole + pause)
    wait = np.maximum(0, whole[:, None] - compute - collect - data - optimizer)
    # Rank 0 saves, and the others wait for it.
    wait[:, 0] -= np.minimum(wait[:, 0], saving)
    lag = rng.uniform(0, 3e-4, habits.world) * 1e9
    told = (4096 * length).astype(np.int64) if habits.tokens_told else np.zeros(shape, np.int64)
    columns: dict[str, NDArray[np.float64] | NDArray[np.int64]] = {
        "attempt": np.ones(shape, np.int64),
        "step": np.broadcast_to(step, shape),
        "rank": np.broadcast_to(np.arange(habits.world), shape),
        "dp_rank": np.broadcast_to(replica, shape),
        "pp_rank": np.broadcast_to(stage, shape),
        "time_ns": end[:, None] + lag,
        "step_ns": np.broadcast_to(whole[:, None], shape),
        "compute_ns": compute + (collect if habits.gc_in_compute else 0),
        "wait_ns": wait,
        "data_ns": data,
        "optimizer_ns": optimizer,
        "gc_ns": collect,
        "tokens": told,
    }
    order = np.argsort(columns["time_ns"], axis=None, kind="stable")
    return {name: values.astype(np.int64).ravel()[order] for name, values in columns.items()}
