"""What the workers of a session compute, for later sessions of the job to be held against."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final
from zlib import crc32

import numpy as np

from app.analysis.budget.common_factor import CommonFactor
from app.analysis.diagnosis.lengths.recorded import some_lengths
from app.analysis.diagnosis.lengths.work import computing_of_steps
from app.analysis.diagnosis.observation import COMPUTATIONS, Observation
from app.analysis.json_text import OMITTED
from app.analysis.replay.layout.dense import Layout
from app.analysis.replay.layout.graph import DP_COLLECTIVES, P2P
from app.analysis.replay.medians import median, median_of_rows
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.ranks.machine import Machine

# Metadata of these steps, or of how they were sent: they say nothing of the job's configuration.
_OF_SESSION: Final = frozenset(
    {"sequence_lengths", "expert_tokens", "unmapped", "producers", "dropped_steps", "pause_s"}
)
# Workers that are enough to tell whether all of them are slow.
_MOST_WORKERS: Final = 64
# What moves data over the network in each step.
TRANSFERS: Final = frozenset({*DP_COLLECTIVES, *P2P})
_DIGEST: Final = 12
_DIGITS: Final = 7  # decimals of seconds


@dataclass(frozen=True, slots=True)
class Computing:
    """What workers compute in a step, for sessions that come later."""

    configuration: str
    """A digest of what must be alike for sessions to be compared: sizes, the operations of a step,
    metadata of the job."""
    every: int
    """Of how many DP ranks one is listed: at most 64 workers are."""
    step_s: tuple[tuple[float, ...], ...]
    """Seconds that a worker computes in the median one of its best steps, [DP rank][stage]."""
    machines: tuple[tuple[str, ...], ...]
    """Node and GPU of each, as far as they are known."""
    tokens: tuple[float, float] | None = field(default=None, metadata=OMITTED)
    """Σs and Σs² of the sequences of a mean step and DP rank, where they are recorded."""
    transfers_s: dict[str, tuple[float, ...]] = field(default_factory=dict, metadata=OMITTED)
    """Seconds that what moves data takes in the median step, without waiting for others, by
    operation type, [stage]; 0 on stages that have none of it."""


def computing_of(observation: Observation, factor: CommonFactor) -> Computing:
    """Return what the workers of a session compute, to be held against later."""
    layout, meta = observation.layout, observation.trace.meta
    every = -(-layout.dp * layout.pp // _MOST_WORKERS)
    best = observation.once(computing_of_steps)[:, factor.best, ::every]
    taken = median(best.swapaxes(0, 1)) / 1e9
    ranks = layout.ranks[::every].tolist()
    return Computing(
        configuration=configuration_of(meta, layout),
        every=every,
        step_s=tuple(map(tuple, np.round(taken.T, _DIGITS).tolist())),
        machines=tuple(tuple(_called(meta.machine(rank)) for rank in row) for row in ranks),
        tokens=_tokens(observation),
        transfers_s=_transfers(observation),
    )


def _transfers(observation: Observation) -> dict[str, tuple[float, ...]]:
    """Return what transfers of each type take in the median step on each stage, seconds.

    Without waiting for others, and on the median rank.
    """
    layout, recorded_ns = observation.layout, observation.recorded_ns
    names = [name for name in layout.op_names if name in TRANSFERS]
    found = [
        (name, stage, nodes)
        for name in names
        for stage in range(layout.pp)
        for nodes in [layout.of(name, stage)]
        if len(nodes)
    ]
    # neighbors: no copies; and one median of all, since calling costs more than computing
    sums = [recorded_ns[nodes[0] : nodes[-1] + 1].sum(axis=0).ravel() for _, _, nodes in found]
    typical = median_of_rows(np.array(sums)).tolist() if found else []
    taken: dict[str, list[float]] = {}
    for (name, stage, _), time_ns in zip(found, typical, strict=True):
        taken.setdefault(name, [0.0] * layout.pp)[stage] = round(time_ns / 1e9, _DIGITS)
    return {name: tuple(times) for name, times in taken.items()}


def configuration_of(meta: SessionMeta, layout: Layout) -> str:
    """Return a digest of what must be alike for sessions to be compared.

    Sizes, the operations of a step on each stage, and all metadata of the job that are not of its
    machines.
    """
    counts = [[len(layout.of(name, stage)) for stage in range(layout.pp)] for name in COMPUTATIONS]
    said = {key: value for key, value in meta.extra.items() if key not in _OF_SESSION}
    sizes = meta.sizes
    known = [sizes.dp, sizes.pp, sizes.tp, sizes.cp, sizes.vpp, sizes.world, counts, said]
    text = json.dumps(known, sort_keys=True, default=str)
    return sha256(text.encode()).hexdigest()[:_DIGEST]


def _called(machine: Machine) -> str:
    """Return a short name of a machine: its GPU's UUID, or else its node and what it calls it."""
    if machine.uuid:
        name = machine.uuid
    elif machine.node and not machine.guessed:
        name = f"{machine.node} {machine.gpu or ''}"
    else:
        return ""
    return f"{crc32(name.encode()):08x}"


def _tokens(observation: Observation) -> tuple[float, float] | None:
    lengths = observation.once(some_lengths) if observation.comparable else None
    if lengths is None or lengths.tokens.mean() <= 0:
        return None
    microbatches = observation.passes[COMPUTATIONS[0]].nodes.shape[1]
    return (
        float(lengths.tokens.mean()) * microbatches,
        float(lengths.squares.mean()) * microbatches,
    )
