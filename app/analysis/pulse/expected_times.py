"""Expected times of a process group, learned from its steps; residuals and their trend.

Residuals are logarithms of measured to expected time: ranks against peers, stages against other
stages, the job against its own past.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import (
    Steps,
)
from app.analysis.pulse.measurements import (
    COMPUTING,
    FEW_HOSTS,
    REST,
    Measured,
    Stretch,
    Subjects,
)
from app.analysis.pulse.medians import (
    Ordered,
    median_of_others,
    median_of_rows,
)
from app.analysis.pulse.token_model import TokenModel, against_peers
from app.analysis.quantities import BoolArray, FloatArray, IntArray
from app.analysis.replay.robust_statistics import MAD_TO_SD, median_of_known

# Weight of the newest stretch of steps when a baseline is updated.
_FOLLOWS: Final = 1 / 16
# Largest logarithmic distance of a baseline from its first value, for a rank and for the job. A
# larger change is a drift, which must stay visible.
_RANK_FOLLOWS: Final = 0.03
_JOB_FOLLOWS: Final = 0.06
# A constant difference of a rank from its peers is usual up to three times the spread of the ranks
# in this job. This limit lies between 0.02 and 0.06.
_USUAL_OFFSET: Final = (0.02, 0.06)
_USUAL_SPREADS: Final = 3.0
# If more than this share of the ranks differs by more than the limit, the job has several kinds of
# devices, and every difference is usual.
_SEVERAL_KINDS: Final = 1 / 3
# Computing of the whole job is compared only if the logarithm of its tokens is within this distance
# of the usual number, or within this share of the range in which its growth with tokens is fitted.
_SAME_TOKENS: Final = 0.05
_OF_REACH: Final = 0.5


@dataclass(frozen=True, slots=True, eq=False)
class Residuals:
    """Residuals: logarithms of measured to expected time.

    Parameters
    ----------
    values : float64[steps, subjects]
        Ranks against their peers, stages against other stages, the job against its own past.
    logs : float64[steps, stages]
        Logarithm of the median computing of each stage, corrected to the usual tokens.
    own_past : float64[steps, stages]
        Computing of each stage against its own baseline.
    computing, lengths : float64[steps, ranks]
        Logarithm of own computing, and of tokens to the usual number; 0 if unknown.
    """

    values: FloatArray
    logs: FloatArray
    own_past: FloatArray
    computing: FloatArray
    lengths: FloatArray


def _one() -> FloatArray:
    return np.empty(0)


@dataclass(slots=True)
class Expected:
    """Baselines of a process group, learned from its steps.

    Parameters
    ----------
    offset, first_offset : float64[ranks]
        Usual logarithmic difference of each rank to its peers, now and at first.
    uneven : float64[ranks]
        Logarithm of each rank's tokens to those of its peers in the last stretch.
    shift, level, first_level, origin : float64[stages]
        Usual movement against other stages; usual logarithm of computing now, at first, and when
        the stage was first seen.
    rest_ns, rest_share, rest_offset : float
        Usual part of a step beyond its longest computing: nanoseconds, share, logarithmic drift.
    growing : TokenModel
        Growth of computing with tokens.
    """

    offset: FloatArray = field(default_factory=_one)
    first_offset: FloatArray = field(default_factory=_one)
    uneven: FloatArray = field(default_factory=_one)
    shift: FloatArray = field(default_factory=_one)
    level: FloatArray = field(default_factory=_one)
    first_level: FloatArray = field(default_factory=_one)
    origin: FloatArray = field(default_factory=_one)
    rest_ns: float = np.nan
    rest_share: float = np.nan
    rest_offset: float = 0.0
    usual_step_ns: float = np.nan
    tokens: float = np.nan
    usual_tokens: float = np.nan
    growing: TokenModel = field(default_factory=TokenModel)

    def grow(self, before: Subjects, after: Subjects) -> None:
        """Grow all arrays for new ranks and stages of the group."""
        new = len(after.ranks) - len(before.ranks)
        self.offset = np.append(self.offset, np.zeros(new))
        self.first_offset = np.append(self.first_offset, np.full(new, np.nan))
        self.uneven = np.append(self.uneven, np.zeros(new))
        at = np.searchsorted(after.stages, before.stages)
        for name in ("shift", "level", "first_level", "origin"):
            values = np.full(len(after.stages), 0.0 if name == "shift" else np.nan)
            values[at] = getattr(self, name)
            setattr(self, name, values)

    def measured(self, steps: Steps, before: FloatArray) -> Measured:
        """Return the measurements of steps, with the logarithm of tokens to the usual number.

        Parameters
        ----------
        before : float64[steps, ranks]
            Garbage collection in the last steps before these; see `Measured.of`.
        """
        tokens = steps.measures["tokens"]
        has_tokens: BoolArray = (tokens > 0) | np.isnan(tokens)
        whole = has_tokens.all(axis=1) & (tokens > 0).any(axis=1)
        if not whole.any():
            return Measured.of(steps, np.zeros_like(tokens), before)
        if np.isnan(self.tokens):
            self.tokens = float(np.nanmedian(tokens[whole][0]))
        lengths = np.log(np.where(tokens > 0, tokens, self.tokens) / self.tokens)
        return Measured.of(steps, np.where(np.asarray(whole)[:, None], lengths, 0.0), before)

    def residuals(self, measured: Measured, subjects: Subjects) -> Residuals:
        """Return the residuals of steps compared with the baselines."""
        residuals = self._of_computing(measured.logs, measured.lengths, subjects)
        step, longest = measured.stretch.step_ns, measured.stretch.longest_ns
        # Waiting in a pipeline is proportional to computing, other waiting is constant. The larger
        # estimate is used.
        expected = longest + np.fmax(self.rest_ns, longest * self.rest_share)
        # A missing rank may be the one with the longest computing, if numbers of tokens differ.
        uneven = np.ptp(measured.lengths, axis=1) > _SAME_TOKENS
        known = ~uneven | measured.there.all(axis=1)
        good = (step > 0) & (expected > 0) & known
        ratio = np.where(good, step, np.nan) / np.where(good, expected, 1)
        residuals.values[:, REST] = np.log(ratio) - self.rest_offset
        same = np.abs(np.log(measured.known_tokens / self.usual_tokens)) < self._comparable
        residuals.values[~same, COMPUTING] = np.nan
        return residuals

    @property
    def _comparable(self) -> float:
        """Return the logarithm of tokens to the usual number up to which computing is known."""
        return max(_SAME_TOKENS, _OF_REACH * self.growing.reach)

    def _of_computing(
        self, computing: FloatArray, lengths: FloatArray, subjects: Subjects
    ) -> Residuals:
        """Return the residuals of all subjects but `REST`.

        Parameters
        ----------
        computing : float64[steps, ranks]
            Logarithm of the own computing of each rank.
        """
        logs = computing - self.offset
        if lengths.any():
            logs -= self.growing.growth(lengths)
        values = np.full((len(logs), subjects.number), np.nan)
        middle = np.empty((len(logs), len(subjects.stages)))
        for stage in range(len(subjects.stages)):
            members = subjects.members(stage)
            part = logs[:, members]
            ordered = Ordered.of(part)
            middle[:, stage] = ordered.median()
            if ordered.count is not None:
                # If at least half of the ranks of a stage are missing, the others do not represent
                # the stage.
                middle[2 * ordered.count <= len(members), stage] = np.nan
            values[:, subjects.first_rank + members] = part - _of_peers(ordered, subjects, members)
        own_past = middle - self.level
        if len(subjects.stages) > 1:
            moved = middle - self.origin - self.shift
            values[:, subjects.of_stages] = moved - median_of_others(moved)
        elif len(subjects.ranks) == 1:
            values[:, subjects.of_stages] = own_past
        values[:, COMPUTING] = median_of_rows(own_past)
        return Residuals(values, middle, own_past, computing, lengths)

    def fit_tokens(self, stretch: Residuals, subjects: Subjects) -> None:
        """Learn how computing grows with tokens, and correct the residuals in place.

        The usual difference of a rank that always has other tokens than its peers changes with the
        growth, so that its residuals stay.
        """
        if not stretch.lengths.any():
            return
        usual = np.median(stretch.lengths)
        pair = np.stack([usual + self.uneven, np.full_like(self.uneven, usual)])
        before = self.growing.growth(pair)
        if not self.growing.fit(stretch.computing, stretch.lengths, subjects):
            return
        more, less = self.growing.growth(pair) - before
        self.offset -= more - less
        self.first_offset -= more - less
        corrected = self._of_computing(stretch.computing, stretch.lengths, subjects)
        known = ~np.isnan(stretch.values)
        known[:, REST] = False
        stretch.values[known] = corrected.values[known]
        stretch.logs[:] = corrected.logs
        stretch.own_past[:] = corrected.own_past

    def learn(
        self,
        stretch: Residuals,
        middle: FloatArray,
        steps: Stretch,
        subjects: Subjects,
        *,
        quiet: BoolArray,
    ) -> FloatArray:
        """Update the baselines from a stretch of steps; return the new first offsets of ranks.

        Parameters
        ----------
        middle : float64[subjects]
            Medians of the residuals of the stretch.
        quiet : bool[subjects]
            Subjects without a notice or suspicion; only their baselines follow the stretch.

        Returns
        -------
        float64[ranks]
            First offsets that were learned with this stretch, as logarithms.
        """
        ranks = subjects.of_ranks
        unsure = self.growing.is_unsure(stretch.lengths, self.uneven, subjects)
        self.uneven = np.nan_to_num(median_of_known(against_peers(stretch.lengths, subjects)))
        moved = self._learn_offsets(stretch.values[:, ranks], middle[ranks], quiet[ranks], unsure)
        tokens = float(median_of_known(steps.tokens[steps.tokens > 0]))
        same = bool(abs(np.log(tokens / self.usual_tokens)) < self._comparable)
        against = middle[subjects.of_stages]
        self._learn_levels(stretch, against, subjects, quiet, same_tokens=same)
        if not same:
            self.usual_tokens = tokens
        step, longest = steps.step_ns, steps.longest_ns
        good = ~np.isnan(step) & ~np.isnan(longest) & (longest > 0)
        if not good.any():
            return moved
        if np.isnan(self.usual_step_ns) or quiet[REST]:
            self.usual_step_ns = float(median_of_known(step[good]))
        if np.isnan(self.rest_ns):
            self.rest_ns = float(median_of_known((step - longest)[good]))
            self.rest_share = float(median_of_known((step / longest - 1)[good]))
        elif quiet[REST]:
            step_by = _FOLLOWS * min(max(float(middle[REST]), -_JOB_FOLLOWS), _JOB_FOLLOWS)
            self.rest_offset = min(self.rest_offset + step_by, _JOB_FOLLOWS)
        return moved

    def _learn_offsets(
        self, values: FloatArray, middle: FloatArray, quiet: BoolArray, unsure: BoolArray
    ) -> FloatArray:
        enough = (~np.isnan(values)).sum(axis=0) >= len(values) // 2
        measured = enough & ~np.isnan(middle)
        new = np.isnan(self.first_offset) & measured
        moved = np.zeros_like(self.offset)
        if new.any():
            seen = np.concatenate([middle[new], self.offset[~np.isnan(self.first_offset)]])
            spread = MAD_TO_SD * np.median(np.abs(seen))
            limit = float(np.clip(_USUAL_SPREADS * spread, *_USUAL_OFFSET))
            several = np.mean(np.abs(seen) > limit) > _SEVERAL_KINDS
            limits = np.where(unsure[new] | several, np.inf, limit)
            self.first_offset[new] = np.clip(middle[new], -limits, limits)
            moved[new] = self.first_offset[new] - self.offset[new]
            self.offset[new] = self.first_offset[new]
        old = ~new & quiet & measured
        first, offset = self.first_offset[old], self.offset[old]
        step = _FOLLOWS * np.clip(middle[old], -_RANK_FOLLOWS, _RANK_FOLLOWS)
        # A baseline may become shorter without limit, because a rank may become faster for good.
        offset = np.minimum(offset + step, first + _RANK_FOLLOWS)
        slower = offset < first - _RANK_FOLLOWS
        self.offset[old] = offset
        self.first_offset[old] = np.where(slower, offset + _RANK_FOLLOWS, first)
        return moved

    def followed(self, subject: int, subjects: Subjects) -> float:
        """Return the logarithm of a subject's growth that its baseline has followed."""
        if subject == REST:
            return self.rest_offset
        if subject == COMPUTING:
            return float(np.nanmedian(self.level - self.first_level))
        if subject < subjects.first_rank:
            return float(self.shift[subject - subjects.of_stages.start])
        rank = subject - subjects.first_rank
        return float(self.offset[rank] - self.first_offset[rank])

    def forget_growth(self, rank: int) -> float:
        """Set a rank's baseline to its first one; return the growth that it had followed."""
        followed = float(self.offset[rank] - self.first_offset[rank])
        self.offset[rank] = self.first_offset[rank]
        return followed

    def rebase(self, rank: int, by: float) -> None:
        """Add a logarithmic difference to a rank's usual offset from its peers."""
        self.offset[rank] += by
        self.first_offset[rank] += by

    def _learn_levels(
        self,
        stretch: Residuals,
        against: FloatArray,
        subjects: Subjects,
        quiet: BoolArray,
        *,
        same_tokens: bool,
    ) -> None:
        past = median_of_known(stretch.own_past)
        for stage in range(len(subjects.stages)):
            if np.isnan(self.level[stage]):
                continue
            if quiet[COMPUTING] and quiet[subjects.of_stages][stage] and not np.isnan(past[stage]):
                self.level[stage] += _FOLLOWS * past[stage]
                limit = self.first_level[stage] + _JOB_FOLLOWS
                if same_tokens:
                    self.level[stage] = min(self.level[stage], limit)
                else:
                    self.level[stage] += (1 - _FOLLOWS) * past[stage]
                    self.first_level[stage] = self.level[stage]
                self.first_level[stage] = min(self.first_level[stage], self.level[stage] + 0.03)
            if quiet[subjects.of_stages][stage] and not np.isnan(against[stage]):
                step = _FOLLOWS * min(max(against[stage], -_RANK_FOLLOWS), _RANK_FOLLOWS)
                self.shift[stage] = min(self.shift[stage] + step, _RANK_FOLLOWS)

    def begin_levels(self, logs: FloatArray) -> None:
        """Set the baselines of stages that have none to the medians of a stretch.

        Parameters
        ----------
        logs : float64[steps, stages]
            Logarithms of computing; NaN where too many ranks are missing.
        """
        unknown = np.isnan(self.level)
        if not unknown.any():
            return
        middle = median_of_known(logs)
        new = unknown & ~np.isnan(middle)
        for values in (self.level, self.first_level, self.origin):
            values[new] = middle[new]


def _of_peers(ordered: Ordered, subjects: Subjects, members: IntArray) -> FloatArray:
    """Return for each rank of a stage the median of its peers, float64[steps, members].

    In a stage of few hosts, peers are the ranks of other hosts: the ranks of one host often become
    slow together, and may be half of the stage or more.
    """
    hosts = subjects.host_of[members]
    names = np.unique(hosts)
    if not 1 < len(names) <= FEW_HOSTS or names[0] < 0:
        return ordered.median_of_others()
    logs = ordered.values
    others = np.empty_like(logs)
    for host in names:
        others[:, hosts == host] = median_of_rows(logs[:, hosts != host])[:, None]
    # If all other hosts are missing from a step, the other ranks of the same host are the peers.
    alone = np.isnan(others).any(axis=1)
    if alone.any():
        others[alone] = np.where(
            np.isnan(others[alone]), median_of_others(logs[alone]), others[alone]
        )
    return others


# Baselines are updated at the end of each stretch of this many steps.
STRETCH: Final = 32
# Number of steps that the history keeps, and the fields that it keeps for one stretch only.
KEPT: Final = 128
_OF_STRETCH: Final = ("computing", "lengths", "collecting")
# Fields of `Stretch` that are the columns of `History.job`.
_JOB: Final = ("step_ns", "longest_ns", "tokens")


def _wide() -> FloatArray:
    return np.empty((0, 0))


@dataclass(slots=True)
class History:
    """Measurements and residuals of the last `KEPT` steps.

    Parameters
    ----------
    numbers, ends_ns : int64[steps]
    values : float64[steps, subjects]
        Residuals; see `Residuals`.
    logs, own_past : float64[steps, stages]
    computing, lengths, collecting : float64[steps, ranks]
        Of the last `STRETCH` steps only.
    job : float64[steps, 3]
        Step, longest computing and tokens.
    parts_ns : float64[steps, parts]
    """

    numbers: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    ends_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    values: FloatArray = field(default_factory=_wide)
    logs: FloatArray = field(default_factory=_wide)
    own_past: FloatArray = field(default_factory=_wide)
    computing: FloatArray = field(default_factory=_wide)
    lengths: FloatArray = field(default_factory=_wide)
    collecting: FloatArray = field(default_factory=_wide)
    job: FloatArray = field(default_factory=lambda: np.empty((0, len(_JOB))))
    parts_ns: FloatArray = field(default_factory=lambda: np.empty((0, 4)))

    def grow(self, columns: dict[str, tuple[IntArray, int]]) -> None:
        """Widen the named arrays; `columns` maps a name to the new columns and the new width."""
        for name, (at, number) in columns.items():
            old = getattr(self, name)
            new = np.full((len(old), number), np.nan)
            new[:, at] = old
            setattr(self, name, new)

    def add(
        self, numbers: IntArray, ends_ns: IntArray, residuals: Residuals, measured: Measured
    ) -> None:
        """Append steps; residuals are rounded to 32 bits, which halves the stored state."""
        stretch = measured.stretch
        job = np.stack([getattr(stretch, name) for name in _JOB], axis=1)
        for name, rows in (
            *(("numbers", numbers), ("ends_ns", ends_ns), ("values", _rounded(residuals.values))),
            *(("logs", residuals.logs), ("own_past", residuals.own_past)),
            *(
                ("computing", _rounded(residuals.computing)),
                ("lengths", _rounded(residuals.lengths)),
                ("collecting", measured.collecting),
            ),
            *(("job", job), ("parts_ns", stretch.parts_ns)),
        ):
            earlier = getattr(self, name)
            setattr(self, name, np.concatenate([earlier, rows]) if len(earlier) else rows)

    def trim(self) -> None:
        """Drop all but the last `KEPT` steps."""
        for name in self.__slots__:
            kept = STRETCH if name in _OF_STRETCH else KEPT
            if len(getattr(self, name)) > kept:
                setattr(self, name, getattr(self, name)[-kept:])

    def last(self, count: int) -> tuple[Residuals, Stretch]:
        """Return the residuals and measurements of the last `count` steps."""
        rows = slice(len(self.numbers) - count, None)
        residuals = Residuals(
            *(self.values[rows], self.logs[rows], self.own_past[rows]),
            *(self.computing[-count:], self.lengths[-count:]),
        )
        step, longest, tokens = self.job[rows].T
        return residuals, Stretch(step, longest, tokens, self.parts_ns[rows])


def _rounded(values: FloatArray) -> FloatArray:
    return values.astype(np.float32).astype(np.float64)


_MOST: Final = 64
_DAY_NS: Final = 86_400 * 1e9


@dataclass(frozen=True, slots=True)
class Slope:
    """Steady growth of a subject: the share a day, and the step at which the growth began."""

    per_day: float
    from_step: int


@dataclass(slots=True)
class Trend:
    """Mean residuals since a group began; at 64 points, each two neighbors are merged.

    Parameters
    ----------
    values : float64[points, subjects]
    steps, ends_ns : int64[points]
        Last step of each point, and its end.
    stride : int
        Number of stretches that make a point.
    """

    values: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    steps: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    ends_ns: IntArray = field(default_factory=lambda: np.empty(0, np.int64))
    stride: int = 1
    pending: FloatArray = field(default_factory=lambda: np.empty((0, 0)))

    def grow(self, at: IntArray, number: int) -> None:
        """Grow the arrays to `number` subjects; earlier subjects move to the columns `at`."""
        for name in ("values", "pending"):
            old = getattr(self, name)
            new = np.full((len(old), number), np.nan)
            new[:, at] = old
            setattr(self, name, new)

    def add(self, values: FloatArray, step: int, end_ns: int) -> None:
        """Add the mean residuals of a stretch, float64[subjects]."""
        self.pending = np.concatenate([self.pending, values[None]])
        if len(self.pending) < self.stride:
            return
        self.values = np.concatenate([self.values, self.pending.mean(axis=0)[None]])
        self.steps = np.append(self.steps, step)
        self.ends_ns = np.append(self.ends_ns, end_ns)
        self.pending = self.pending[:0]
        if len(self.values) >= _MOST:
            self.values = (self.values[::2] + self.values[1::2]) / 2
            self.steps, self.ends_ns = self.steps[1::2], self.ends_ns[1::2]
            self.stride *= 2

    def slope(self, subject: int) -> Slope | None:
        """Fit a constant followed by a rising line to a subject's trend, by least squares.

        Returns
        -------
        Slope or None
            The growth after the best bend; None of fewer than four points, or without growth.
        """
        present = ~np.isnan(self.values[:, subject])
        values, ends, steps = (
            self.values[present, subject],
            self.ends_ns[present],
            self.steps[present],
        )
        if len(values) < 4:  # noqa: PLR2004
            return None
        days = (ends - ends[0]) / _DAY_NS
        best: tuple[float, float, int] | None = None
        for bend in range(len(values) - 2):
            ramp = np.maximum(days - days[bend], 0)
            design = np.stack([np.ones_like(ramp), ramp], axis=1)
            solution, *_ = np.linalg.lstsq(design, values, rcond=None)
            error = float(((values - design @ solution) ** 2).sum())
            if best is None or error < best[0]:
                best = error, float(solution[1]), int(steps[bend])
        if best is None or best[1] <= 0:
            return None
        return Slope(per_day=best[1], from_step=best[2])
