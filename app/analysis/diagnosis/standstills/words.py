"""What is said of time between steps: what ranks do there, and where they do nothing recorded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.diagnosis.between.passing import NS, Passing
from app.analysis.diagnosis.between.period import FEWEST, interval, listed
from app.analysis.diagnosis.figures import LateLaunches
from app.analysis.diagnosis.finding import Evidence, Standstill
from app.analysis.diagnosis.places import StepView
from app.analysis.diagnosis.signs import Signs
from app.analysis.replay.layout.dense import FloatArray
from app.analysis.wording import percent

# A step counts as struck when what is before it is this share of the longest.
_STRUCK: Final = 0.25
# What ranks record themselves is not in doubt.
_RECORDED: Final = 0.99


@dataclass(frozen=True, slots=True)
class Thresholds:
    """What decides what an empty gap is likeliest to be."""

    # Ranks go on one by one when their begins are this many times as far apart as usual…
    spread: float = 3.0
    spread_of_gap: float = 0.02  # …and by this share of the gap
    alike: float = 0.15  # gaps are alike when their lengths vary by this share
    collecting: float = 0.1  # garbage is collected for this share of the gap right before it
    # How sure a guess is at most; no guess is surer than the first one.
    periodic: float = 0.7
    one_by_one: float = 0.6
    once: float = 0.6
    unknown: float = 0.5


THRESHOLDS: Final = Thresholds()


def recorded_standstill(signs: Signs, name: str, doing: str) -> Standstill | None:
    """Return what ranks are recorded to do between steps; `doing` says it in words."""
    passing = signs.passing
    if passing is None or name not in passing.named_ns:
        return None
    lost_ns = passing.named_ns[name]
    if not passing.is_worth_naming(lost_ns):
        return None
    host_operations = passing.host_operations.of(name)
    workers = len(set(zip(host_operations.dp.tolist(), host_operations.pp.tolist(), strict=True)))
    layout = signs.observation.layout
    some = f"{workers} of {layout.dp * layout.pp} workers do"
    who = "all workers do" if workers == layout.dp * layout.pp else some
    if workers == 1:
        worker = (int(host_operations.dp[0]), int(host_operations.pp[0]))
        who = f"only {signs.observation.hosts.named(worker)} does"
    said = f"{doing} between steps for {_how(passing, lost_ns)}; {who}"
    return Standstill(lost_ns, (_line(passing, lost_ns, said),), _RECORDED, _figure(lost_ns))


def empty_standstill(signs: Signs) -> Standstill | None:
    """Return the time between steps in which nothing is recorded, and what it likeliest is."""
    passing = signs.passing
    if passing is None:
        return None
    lost_ns = passing.stalled_ns
    if passing.is_worth_naming(lost_ns):
        guess = _guess(passing, lost_ns > 0)
        said = (
            f"Nothing is recorded between steps for {_how(passing, lost_ns)}; usually "
            f"{passing.usual_ns / 1e6:.0f} ms pass"
        )
        lines = (_line(passing, lost_ns, said), Evidence(guess.text))
        return Standstill(lost_ns, lines, guess.most, _figure(lost_ns))
    if not passing.lasting:
        return None
    lost_ns = np.where(passing.turns.known, passing.usual_ns, 0.0)
    said = (
        f"Nothing is recorded for {_time(passing.usual_ns)} before each step, "
        f"{percent(passing.usual_ns / passing.turn_ns, 0)} of the time"
    )
    most = THRESHOLDS.unknown
    return Standstill(lost_ns, (_line(passing, lost_ns, said),), most, _figure(lost_ns))


def _how(passing: Passing, lost_ns: FloatArray) -> str:
    """Say how long something takes, before which steps and how often."""
    struck = lost_ns > _STRUCK * lost_ns.max()
    mean = _time(float(lost_ns[struck].mean()))
    known = passing.turns.known
    if struck.sum() > known.sum() / 2:
        return f"{mean} before each step"
    steps = passing.turns.steps
    apart = interval(steps[known], struck[known])
    often = f", every {apart} steps" if apart and struck.sum() >= FEWEST else ""
    each = "" if struck.sum() == 1 else " each time"
    return f"{mean}{each} before {listed(steps[struck].tolist())}{often}"


def _time(time_ns: float) -> str:
    return f"{time_ns * NS:.1f} s" if time_ns >= 1e9 else f"{time_ns / 1e6:.0f} ms"  # noqa: PLR2004 - a second


def _line(passing: Passing, lost_ns: FloatArray, said: str) -> Evidence:
    return Evidence(said, StepView(step=int(passing.turns.steps[int(lost_ns.argmax())])))


def _figure(lost_ns: FloatArray) -> LateLaunches:
    return LateLaunches(by_step_s=tuple((lost_ns * NS).tolist()))


@dataclass(frozen=True, slots=True)
class _Guess:
    text: str
    most: float  # how sure it is at most


def _guess(passing: Passing, struck: NDArray[np.bool_]) -> _Guess:
    """Return what an empty gap is likeliest to be."""
    turns, gap_ns = passing.turns, passing.stalled_ns[struck]
    known = turns.known
    others = known & ~struck
    gap, collected = float(np.median(gap_ns)), passing.collected_ns
    collecting = float(np.median(collected[struck]))
    if collecting >= THRESHOLDS.collecting * gap and (
        np.median(collected[others]) < THRESHOLDS.collecting * collecting
    ):
        text = "Likeliest garbage: it is collected right before, and not before other steps"
        return _Guess(text, THRESHOLDS.one_by_one)
    begins = turns.begins_ns[:, turns.begins_ns.min(axis=(0, 2)).argmin()]
    spread = np.ptp(begins, axis=1)
    apart, usually = float(np.median(spread[struck])), float(np.median(spread[others]))
    if apart > max(THRESHOLDS.spread * usually, THRESHOLDS.spread_of_gap * gap):
        text = (
            f"Likeliest data: workers go on one by one, {_time(apart)} apart, as when each waits "
            "for its own batch"
        )
        return _Guess(text, THRESHOLDS.one_by_one)
    saved = "Likeliest a checkpoint or an evaluation"
    alike = float(np.std(gap_ns)) <= THRESHOLDS.alike * float(np.mean(gap_ns))
    if interval(turns.steps[known], struck[known]) and alike and struck.sum() >= FEWEST:
        text = f"{saved}: as long each time, evenly, and all workers go on together"
        return _Guess(text, THRESHOLDS.periodic)
    if struck.sum() == 1:
        text = f"{saved}: there once, and all workers go on together"
        return _Guess(text, THRESHOLDS.once)
    text = (
        "Likeliest data, as when a loader fills its buffer: it comes unevenly, and all workers go "
        "on together"
    )
    return _Guess(text, THRESHOLDS.unknown)
