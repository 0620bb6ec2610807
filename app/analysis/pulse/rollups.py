"""Rollups of a pulse by minute and hour: sums to which each batch of steps adds."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np

from app.analysis.pulse.columns import (
    Steps,
)
from app.analysis.pulse.medians import median_of_rows
from app.analysis.pulse.packing import pack, unpack
from app.analysis.quantities import FloatArray, IntArray

# Durations are counted in logarithmic classes of this width, half a percent, so that quantiles are
# exact to a quarter of a percent.
_CLASS: Final = 0.005
# Ratios of a rank's computing to the median of its peers are summed as integer thousandths.
THOUSAND: Final = 1_000
_HIGH: Final = 0.95
# Minimum number of ranks of a stage for a comparison with the stage's median.
_PEERS: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """Sums over the whole steps of a minute or an hour.

    Parameters
    ----------
    steps : int
        Number of steps.
    step_ns : int
        Sum of the median step time over the ranks.
    worst_ns : int
        Longest step of a rank.
    tokens : int
        Tokens of all replicas.
    lost_ns : int
        GPU-nanoseconds in which all ranks waited for the rank that computes longest compared with
        its peers.
    rank_ns : int
        GPU-nanoseconds of all steps.
    ranks, ratios, counted : int64[ranks]
        Global ranks, ascending; sum of their computing in thousandths of the median of their stage;
        and number of summed steps, 0 without peers.
    step_classes, step_counts : int64[classes]
        Logarithmic classes of the median step time, and number of steps in each.
    compute_classes, compute_counts : int64[classes]
        Logarithmic classes of the computing of each rank and step, and number in each.
    """

    steps: int
    step_ns: int
    worst_ns: int
    tokens: int
    lost_ns: int
    rank_ns: int
    ranks: IntArray
    ratios: IntArray
    counted: IntArray
    step_classes: IntArray
    step_counts: IntArray
    compute_classes: IntArray
    compute_counts: IntArray

    @classmethod
    def of(cls, steps: Steps, which: slice) -> Self:
        """Return the sums over the whole steps in a slice."""
        step_ns = steps.measures["step_ns"][which]
        there = ~np.isnan(step_ns)
        median_ns = median_of_rows(step_ns)
        computing = steps.measures["compute_ns"][which] - steps.measures["gc_ns"][which]
        computing = np.maximum(computing, 0.0)
        ratio, excess_ns = _against_peers(computing, steps.pp_ranks)
        lost_ns = np.minimum(excess_ns, median_ns) * np.count_nonzero(there, axis=1)
        present = there.any(axis=0)
        compared = ~np.isnan(ratio)
        thousandths = np.rint(np.where(compared, ratio, 0.0).sum(axis=0) * THOUSAND)
        order = np.argsort(steps.ranks[present], kind="stable")
        # All ranks of a replica process the same tokens, so that these are counted once, by the
        # largest number that a rank of the replica sent.
        tokens = np.nan_to_num(steps.measures["tokens"][which])
        by_replica = np.argsort(steps.dp_ranks, kind="stable")
        _, starts = np.unique(steps.dp_ranks[by_replica], return_index=True)
        replica_tokens = np.maximum.reduceat(tokens[:, by_replica], starts, axis=1)
        step_classes, step_counts = _classes(median_ns)
        compute_classes, compute_counts = _classes(computing[there])
        return cls(
            steps=len(step_ns),
            step_ns=int(np.rint(median_ns.sum())),
            worst_ns=int(np.nanmax(step_ns)),
            tokens=int(float(replica_tokens.sum())),
            lost_ns=int(np.rint(lost_ns.sum())),
            rank_ns=int(np.nansum(step_ns)),
            ranks=steps.ranks[present][order],
            ratios=thousandths.astype(np.int64)[present][order],
            counted=np.count_nonzero(compared, axis=0).astype(np.int64)[present][order],
            step_classes=step_classes,
            step_counts=step_counts,
            compute_classes=compute_classes,
            compute_counts=compute_counts,
        )

    def plus(self, other: Sums) -> Sums:
        """Return the sums over the steps of both sums together."""
        ranks, (ratios, counted) = _added(
            (self.ranks, self.ratios, self.counted), (other.ranks, other.ratios, other.counted)
        )
        step_classes, (step_counts,) = _added(
            (self.step_classes, self.step_counts), (other.step_classes, other.step_counts)
        )
        compute_classes, (compute_counts,) = _added(
            (self.compute_classes, self.compute_counts),
            (other.compute_classes, other.compute_counts),
        )
        return Sums(
            self.steps + other.steps,
            self.step_ns + other.step_ns,
            max(self.worst_ns, other.worst_ns),
            self.tokens + other.tokens,
            self.lost_ns + other.lost_ns,
            self.rank_ns + other.rank_ns,
            ranks,
            ratios,
            counted,
            step_classes,
            step_counts,
            compute_classes,
            compute_counts,
        )

    @property
    def median_ns(self) -> float:
        """Return the median step time, nanoseconds."""
        return _quantile(self.step_classes, self.step_counts, 0.5)

    @property
    def high_ns(self) -> float:
        """Return the 95th percentile of the step time, nanoseconds."""
        return _quantile(self.step_classes, self.step_counts, _HIGH)

    @property
    def compute_median_ns(self) -> float:
        """Return the median computing over ranks and steps, nanoseconds; 0 if unknown."""
        return _quantile(self.compute_classes, self.compute_counts, 0.5)

    @property
    def compute_high_ns(self) -> float:
        """Return the 95th percentile of computing over ranks and steps, nanoseconds; 0 if none."""
        return _quantile(self.compute_classes, self.compute_counts, _HIGH)

    @property
    def against_peers(self) -> FloatArray:
        """Return each rank's mean ratio of computing to that of its peers; NaN without peers."""
        means = self.ratios / np.maximum(self.counted, 1) / THOUSAND
        return np.where(self.counted > 0, means, np.nan)

    def slowest(self, most: int) -> list[tuple[int, float]]:
        """Return the `most` ranks with the highest ratio of computing to peers, and the ratios."""
        means = np.where(self.counted > 0, self.against_peers, -np.inf)
        order = np.argsort(-means, kind="stable")[:most]
        return [
            (int(self.ranks[place]), float(means[place]))
            for place in order
            if np.isfinite(means[place])
        ]


_SCALARS: Final = tuple(field.name for field in fields(Sums) if field.type == "int")
_ARRAYS: Final = tuple(field.name for field in fields(Sums) if field.name not in _SCALARS)


def to_bytes(sums: Sums) -> bytes:
    """Return the sums, packed as bytes."""
    return pack(
        {name: getattr(sums, name) for name in _ARRAYS},
        steps=("ranks", "step_classes", "compute_classes"),
        more={name: getattr(sums, name) for name in _SCALARS},
    )


def from_bytes(body: bytes) -> Sums:
    """Return the sums that `to_bytes` packed.

    Raises
    ------
    NewerFormatError
        A later version packed the bytes.
    """
    columns, more = unpack(body)
    values: dict[str, Any] = {**more, **columns}
    return Sums(**values)


def _against_peers(computing: FloatArray, stages: IntArray) -> tuple[FloatArray, FloatArray]:
    """Return computing as a ratio to the stage's median, and the largest excess in each step.

    Parameters
    ----------
    computing : float64[steps, ranks]
    stages : int64[ranks]

    Returns
    -------
    ratio : float64[steps, ranks]
        NaN for missing ranks and ranks without peers.
    excess_ns : float64[steps]
    """
    ratio = np.full_like(computing, np.nan)
    excess_ns = np.zeros(len(computing))
    for stage in np.unique(stages):
        members = np.flatnonzero(stages == stage)
        if len(members) < _PEERS:
            continue
        own = computing[:, members]
        usual = median_of_rows(own)[:, None]
        ratio[:, members] = own / np.where(usual > 0, usual, np.nan)
        excess_ns = np.fmax(excess_ns, np.fmax.reduce(own - usual, axis=1))
    return ratio, excess_ns


def _classes(durations_ns: FloatArray) -> tuple[IntArray, IntArray]:
    """Return the logarithmic classes of durations, sorted, and the number of durations in each."""
    sound = durations_ns[durations_ns > 0]
    numbers = np.floor(np.log(sound) / _CLASS).astype(np.int64)
    classes, counts = np.unique(numbers, return_counts=True)
    return classes, counts.astype(np.int64)


def _added(
    left: tuple[IntArray, ...], right: tuple[IntArray, ...]
) -> tuple[IntArray, list[IntArray]]:
    """Return the sorted keys of two tables (their first columns), and the sums of other columns."""
    if len(left[0]) == len(right[0]) and np.array_equal(left[0], right[0]):
        return left[0], [a + b for a, b in zip(left[1:], right[1:], strict=True)]
    keys, place = np.unique(np.concatenate([left[0], right[0]]), return_inverse=True)
    sums = []
    for a, b in zip(left[1:], right[1:], strict=True):
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, place, np.concatenate([a, b]))
        sums.append(total)
    return keys, sums


def _quantile(classes: IntArray, counts: IntArray, share: float) -> float:
    """Return the quantile `share` of counted durations, as the middle of its class; 0 if none."""
    if not len(classes):
        return 0.0
    total = np.cumsum(counts)
    place = int(np.searchsorted(total, share * total[-1]))
    return float(np.exp((classes[min(place, len(classes) - 1)] + 0.5) * _CLASS))
