"""Minute and hour rollups of a pulse, as sums that are added batch by batch."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any, Final, Self

import numpy as np

from app.analysis.pulse.columns import Float64, Int64, Steps
from app.analysis.pulse.medians import median_of_rows
from app.analysis.pulse.packing import pack, unpack

# Durations are counted in classes of half a percent: quantiles are right to a quarter of one.
_CLASS: Final = 0.005
# Computing against peers is summed up in thousandths.
THOUSAND: Final = 1_000
_HIGH: Final = 0.95
_TOGETHER: Final = 2


@dataclass(frozen=True, slots=True, eq=False)
class Sums:
    """What steps come to together.

    Parameters
    ----------
    steps : int
        How many there are.
    step_ns : int
        Of all of them: the median over ranks of each.
    worst_ns : int
        The longest step of a rank.
    tokens : int
        Of all replicas; ranks of one replica have the same.
    lost_ns : int
        GPU-nanoseconds for which all ranks waited for the one that computes longest against its
        peers.
    rank_ns : int
        GPU-nanoseconds of all steps.
    ranks, ratios, counted : int64[ranks]
        Global ranks in order, thousandths of computing against the median of the peers (ranks of
        the same stage), summed over steps, and how many steps those are; 0 where it has no peer.
    step_classes, step_counts : int64[classes]
        Logarithmic classes of the median step time, and steps in each.
    compute_classes, compute_counts : int64[classes]
        The same of computing, of every rank and step.
    """

    steps: int
    step_ns: int
    worst_ns: int
    tokens: int
    lost_ns: int
    rank_ns: int
    ranks: Int64
    ratios: Int64
    counted: Int64
    step_classes: Int64
    step_counts: Int64
    compute_classes: Int64
    compute_counts: Int64

    @classmethod
    def of(cls, steps: Steps, which: slice) -> Self:
        """Return the sums of whole steps."""
        step_ns = steps.measures["step_ns"][which]
        there = ~np.isnan(step_ns)
        median_ns = median_of_rows(step_ns)
        computing = steps.measures["compute_ns"][which] - steps.measures["gc_ns"][which]
        computing = np.maximum(computing, 0.0)
        ratio, excess_ns = _against_peers(computing, steps.pp_ranks)
        lost_ns = np.minimum(excess_ns, median_ns) * np.count_nonzero(there, axis=1)
        present = there.any(axis=0)
        known = ~np.isnan(ratio)
        thousandths = np.rint(np.where(known, ratio, 0.0).sum(axis=0) * THOUSAND)
        order = np.argsort(steps.ranks[present], kind="stable")
        step_classes, step_counts = _classes(median_ns)
        compute_classes, compute_counts = _classes(computing[there])
        return cls(
            steps=len(step_ns),
            step_ns=int(np.rint(median_ns.sum())),
            worst_ns=int(np.nanmax(step_ns)),
            tokens=int(_tokens(steps, which)),
            lost_ns=int(np.rint(lost_ns.sum())),
            rank_ns=int(np.nansum(step_ns)),
            ranks=steps.ranks[present][order],
            ratios=thousandths.astype(np.int64)[present][order],
            counted=np.count_nonzero(known, axis=0).astype(np.int64)[present][order],
            step_classes=step_classes,
            step_counts=step_counts,
            compute_classes=compute_classes,
            compute_counts=compute_counts,
        )

    def plus(self, other: Sums) -> Sums:
        """Return these and others together."""
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
        """Return the median computing of all ranks, nanoseconds; 0 where none is known."""
        return _quantile(self.compute_classes, self.compute_counts, 0.5)

    @property
    def compute_high_ns(self) -> float:
        """Return its 95th percentile, nanoseconds; 0 where none is known."""
        return _quantile(self.compute_classes, self.compute_counts, _HIGH)

    @property
    def against_peers(self) -> Float64:
        """Return the mean computing of each rank against its peers; NaN where it has none."""
        means = self.ratios / np.maximum(self.counted, 1) / THOUSAND
        return np.where(self.counted > 0, means, np.nan)

    def slowest(self, most: int) -> list[tuple[int, float]]:
        """Return the ranks that compute longest against their peers, and how much longer."""
        means = np.where(self.counted > 0, self.against_peers, -np.inf)
        order = np.argsort(-means, kind="stable")[:most]
        return [
            (int(self.ranks[place]), float(means[place]))
            for place in order
            if np.isfinite(means[place])
        ]


_SCALARS: Final = tuple(field.name for field in fields(Sums) if field.type == "int")
_ARRAYS: Final = tuple(field.name for field in fields(Sums) if field.type == "Int64")


def to_bytes(sums: Sums) -> bytes:
    """Return sums as few bytes."""
    return pack(
        {name: getattr(sums, name) for name in _ARRAYS},
        steps=("ranks", "step_classes", "compute_classes"),
        more={name: getattr(sums, name) for name in _SCALARS},
    )


def from_bytes(body: bytes) -> Sums:
    """Return the sums that these bytes are.

    Raises
    ------
    UnknownDocumentError
        They are of another version.
    """
    columns, more = unpack(body)
    values: dict[str, Any] = {**more, **columns}
    return Sums(**values)


def _against_peers(computing: Float64, stages: Int64) -> tuple[Float64, Float64]:
    """Return computing against the median of the stage, and the largest excess of each step.

    Parameters
    ----------
    computing : float64[steps, ranks]
    stages : int64[ranks]

    Returns
    -------
    ratio : float64[steps, ranks]
        NaN where a rank is missing or has no peer.
    excess_ns : float64[steps]
    """
    ratio = np.full_like(computing, np.nan)
    excess_ns = np.zeros(len(computing))
    for stage in np.unique(stages):
        mine = np.flatnonzero(stages == stage)
        if len(mine) < _TOGETHER:
            continue
        own = computing[:, mine]
        usual = median_of_rows(own)[:, None]
        ratio[:, mine] = own / np.where(usual > 0, usual, np.nan)
        excess_ns = np.fmax(excess_ns, np.fmax.reduce(own - usual, axis=1))
    return ratio, excess_ns


def _tokens(steps: Steps, which: slice) -> float:
    """Return the tokens of all replicas: of each those of the rank that says most."""
    tokens = np.nan_to_num(steps.measures["tokens"][which])
    order = np.argsort(steps.dp_ranks, kind="stable")
    _, starts = np.unique(steps.dp_ranks[order], return_index=True)
    return float(np.maximum.reduceat(tokens[:, order], starts, axis=1).sum())


def _classes(durations_ns: Float64) -> tuple[Int64, Int64]:
    """Return the logarithmic classes of durations, and how many there are of each."""
    sound = durations_ns[durations_ns > 0]
    numbers = np.floor(np.log(sound) / _CLASS).astype(np.int64)
    classes, counts = np.unique(numbers, return_counts=True)
    return classes, counts.astype(np.int64)


def _added(one: tuple[Int64, ...], other: tuple[Int64, ...]) -> tuple[Int64, list[Int64]]:
    """Add up columns by their first one."""
    if len(one[0]) == len(other[0]) and np.array_equal(one[0], other[0]):
        return one[0], [mine + its for mine, its in zip(one[1:], other[1:], strict=True)]
    keys, place = np.unique(np.concatenate([one[0], other[0]]), return_inverse=True)
    sums = []
    for mine, its in zip(one[1:], other[1:], strict=True):
        total = np.zeros(len(keys), np.int64)
        np.add.at(total, place, np.concatenate([mine, its]))
        sums.append(total)
    return keys, sums


def _quantile(classes: Int64, counts: Int64, share: float) -> float:
    """Return the middle of the class in which a share of what is counted is reached."""
    if not len(classes):
        return 0.0
    total = np.cumsum(counts)
    place = int(np.searchsorted(total, share * total[-1]))
    return float(np.exp((classes[min(place, len(classes) - 1)] + 0.5) * _CLASS))
