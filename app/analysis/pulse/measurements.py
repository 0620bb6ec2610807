"""Subjects of detection (the job, its stages, its ranks), and the measurements of steps."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    Steps,
)
from app.analysis.pulse.medians import median_of_rows
from app.analysis.quantities import BoolArray, FloatArray, IntArray

_PARTS = ("wait_ns", "data_ns", "optimizer_ns", "gc_ns")


@dataclass(frozen=True, slots=True, eq=False)
class Stretch:
    """Measurements of the whole job in each step.

    Parameters
    ----------
    step_ns : float64[steps]
        Median over the ranks.
    longest_ns : float64[steps]
        Longest computing of a rank.
    tokens : float64[steps]
        Median over the ranks; 0 if unknown.
    parts_ns : float64[steps, parts]
        Waiting, data loading, optimizer and garbage collection; medians over the ranks.
    """

    step_ns: FloatArray
    longest_ns: FloatArray
    tokens: FloatArray
    parts_ns: FloatArray

    def some(self, rows: slice) -> Stretch:
        """Return the measurements of the steps in a slice."""
        return Stretch(
            self.step_ns[rows], self.longest_ns[rows], self.tokens[rows], self.parts_ns[rows]
        )


@dataclass(frozen=True, slots=True, eq=False)
class Measured:
    """Whole steps, with measurements of each step that do not depend on other steps.

    Parameters
    ----------
    steps : Steps
    there : bool[steps, ranks]
        Whether a rank sent the step.
    logs : float64[steps, ranks]
        Logarithm of a rank's own computing, with `lasting`; NaN where unknown.
    collecting : float64[steps, ranks]
        Garbage collection beyond the median of the ranks, nanoseconds; 0 where unknown.
    lasting : float64[steps, ranks]
        The part of `collecting` of ranks that collect again and again; see `lasting_collection`.
    lengths : float64[steps, ranks]
        Logarithm of tokens to the usual number; 0 if unknown.
    known_tokens : float64[steps]
        Median over the ranks with known tokens.
    stretch : Stretch
    """

    steps: Steps
    there: BoolArray
    logs: FloatArray
    collecting: FloatArray
    lasting: FloatArray
    lengths: FloatArray
    known_tokens: FloatArray
    stretch: Stretch

    @classmethod
    def of(cls, steps: Steps, lengths: FloatArray, before: FloatArray) -> Measured:
        """Return the measurements of steps, given the logarithms of their tokens.

        Parameters
        ----------
        before : float64[steps, ranks]
            `collecting` of the last steps before these.
        """
        measures = steps.measures
        tokens = measures["tokens"]
        middle = median_of_rows(tokens)
        collecting = measures["gc_ns"]
        parts = [median_of_rows(measures[name]) for name in _PARTS]
        more = np.maximum(collecting - parts[-1][:, None], 0)
        # Rounded as in the history, so that results do not depend on how steps are batched.
        known = np.nan_to_num(more).astype(np.float32).astype(np.float64)
        lasting = lasting_collection(known, before)
        # Other garbage collection is left out, because only some frameworks count it as computing.
        own = own_computing(measures, lasting)
        has_tokens = np.isnan(tokens) | (tokens > 0)
        return cls(
            steps,
            ~np.isnan(measures["step_ns"]),
            np.log(np.where(own > 0, own, np.nan)),
            known,
            lasting,
            lengths,
            middle if has_tokens.all() else median_of_rows(np.where(tokens > 0, tokens, np.nan)),
            Stretch(
                median_of_rows(measures["step_ns"]),
                np.fmax.reduce(own - lasting + more, axis=1),
                middle,
                np.stack(parts, axis=1),
            ),
        )

    def some(self, rows: slice) -> Measured:
        """Return the measurements of the steps in a slice."""
        return Measured(
            self.steps.some(rows),
            self.there[rows],
            self.logs[rows],
            self.collecting[rows],
            self.lasting[rows],
            self.lengths[rows],
            self.known_tokens[rows],
            self.stretch.some(rows),
        )


def own_computing(measures: Mapping[str, FloatArray], lasting: FloatArray) -> FloatArray:
    """Return computing without the garbage collection that does not last.

    NaN if that collection took more than half.
    """
    computing = measures["compute_ns"]
    own = computing - (measures["gc_ns"] - lasting)
    return np.where(own > computing / 2, own, np.nan)


# A rank collects garbage again and again if it did in this many of the last steps; not if more than
# this share of the ranks (or one) did so in at least two of them, which is usual then.
_AGAIN: Final = 4
_TWICE: Final = 2
_LAST_STEPS: Final = 8
_COMMON: Final = 1 / 4


def lasting_collection(collecting: FloatArray, before: FloatArray) -> FloatArray:
    """Return the garbage collection of the few ranks that collect again and again.

    It is at most the fourth longest in the last eight steps, and more than twice the usual time.

    Parameters
    ----------
    collecting, before : float64[steps, ranks]
        Garbage collection of steps, and of the steps before them.
    """
    steps, ranks = collecting.shape
    last = np.nan_to_num(before[1 - _LAST_STEPS :])
    whole = np.zeros((_LAST_STEPS - 1 + steps, ranks))
    whole[_LAST_STEPS - 1 :] = collecting
    whole[_LAST_STEPS - 1 - len(last) : _LAST_STEPS - 1, : last.shape[1]] = last
    common = max(1, int(_COMMON * ranks))
    if common >= ranks or not whole.any():
        return np.zeros_like(collecting)
    ordered = np.sort(np.lib.stride_tricks.sliding_window_view(whole, _LAST_STEPS, axis=0), axis=2)
    again, twice = ordered[:, :, -_AGAIN], ordered[:, :, -_TWICE]
    usual = np.sort(twice, axis=1)[:, -1 - common, None]
    return np.where(again > 2 * usual, np.minimum(collecting, again), 0.0)


# Columns of the two subjects of the whole job: the part of a step beyond the longest computing, and
# the computing of all ranks.
REST: Final = 0
COMPUTING: Final = 1
OF_JOB: Final = 2
# Among more hosts than this, one slow host does not move the median.
FEW_HOSTS: Final = 4


@dataclass(frozen=True, slots=True, eq=False)
class Subjects:
    """The subjects of a process group as columns: two for the job, then its stages, then its ranks.

    Parameters
    ----------
    ranks : int64[ranks]
        Global ranks, in the order of their first row.
    stages : int64[stages]
        Pipeline stages, rising.
    stage_of : int64[ranks]
        Index of each rank's stage.
    host_of : int64[ranks]
        A number for each host; -1 if unknown.
    """

    ranks: IntArray
    stages: IntArray
    stage_of: IntArray
    host_of: IntArray

    @classmethod
    def of(cls, ranks: IntArray, pp_ranks: IntArray, hosts: Mapping[int, str]) -> Subjects:
        """Return the subjects of a process group with the given ranks."""
        stages, stage_of = np.unique(pp_ranks, return_inverse=True)
        number = {name: index for index, name in enumerate(sorted(set(hosts.values())))}
        host_of = [number[hosts[rank]] if rank in hosts else -1 for rank in ranks.tolist()]
        return cls(ranks, stages, stage_of.astype(np.int64), np.array(host_of, np.int64))

    @property
    def number(self) -> int:
        """Return the number of subjects."""
        return OF_JOB + len(self.stages) + len(self.ranks)

    @property
    def first_rank(self) -> int:
        """Return the column of the first rank."""
        return OF_JOB + len(self.stages)

    @property
    def of_stages(self) -> slice:
        """Return the columns of the stages."""
        return slice(OF_JOB, self.first_rank)

    @property
    def of_ranks(self) -> slice:
        """Return the columns of the ranks."""
        return slice(self.first_rank, self.number)

    def members(self, stage: int) -> IntArray:
        """Return the indices into `ranks` of the ranks of a stage, which is given by its index."""
        return np.flatnonzero(self.stage_of == stage)

    def places_in(self, later: Subjects) -> IntArray:
        """Return the column of each of these subjects in a later, larger group."""
        stages = np.searchsorted(later.stages, self.stages) + OF_JOB
        ranks = np.arange(len(self.ranks)) + later.first_rank
        return np.concatenate([np.arange(OF_JOB), stages, ranks])
