"""Score the notices about synthetic pulses with known faults; `make pulse-score` runs this."""

from __future__ import annotations

import argparse
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from app.analysis.pulse.columns import Pulses
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.notices import Notice, NoticeKind
from app.analysis.synthesis.job import stream
from app.analysis.synthesis.pulse_job import PulseDials, PulseJob, PulseTruth
from app.analysis.synthesis.random_pulses import EVENTS, draw_pulse, hanging, with_beats

_BATCH: Final = 1 << 16
_OF_RANKS: Final = frozenset({NoticeKind.SLOW_RANK, NoticeKind.SPELLS, NoticeKind.DRIFT})
_OF_JOB: Final = frozenset({NoticeKind.SLOW_JOB, NoticeKind.DRIFT})
# A notice may come this number of steps after the end of its fault.
_LATE: Final = 3


@dataclass(frozen=True, slots=True)
class Kind:
    """A row of the table: a drawn fault, and the number of steps within which a notice is due."""

    name: str
    faults: tuple[str, ...]
    factor: float
    bar: int
    lengths: bool = False
    long_tails: bool = False
    steps: int = 500


KINDS: Final = (
    Kind("rank 10 %", ("rank",), 1.1, 20),
    Kind("rank 20 %", ("rank",), 1.2, 10),
    Kind("rank 50 %", ("rank",), 1.5, 3),
    Kind("rank 10 %, lengths vary", ("rank",), 1.1, 60, lengths=True),
    Kind("rank 50 %, lengths vary", ("rank",), 1.5, 6, lengths=True),
    Kind("host 10 %", ("host",), 1.1, 20),
    Kind("host 50 %", ("host",), 1.5, 3),
    Kind("network 20 %", ("network",), 1.2, 30),
    Kind("data 30 %", ("data",), 1.3, 30),
    Kind("spells 40 %", ("spells",), 1.4, 60, steps=700),
    Kind("rotating 40 %", ("rotating",), 1.4, 100, steps=700),
    Kind("drift to 30 %", ("drift",), 1.3, 1500, steps=4000),
    Kind("rank 20 %, long-tailed tokens", ("rank",), 1.2, 20, long_tails=True),
    Kind("twice the tokens", ("tokens",), 2.0, 400, long_tails=True, steps=900),
    Kind("rank 20 %, then network", ("rank", "network"), 1.2, 30, steps=900),
)
_HANGS: Final = ("hang", "silent")


@dataclass(slots=True)
class Tally:
    """Counts of notices about one kind of fault."""

    drawn: int = 0
    noticed: int = 0
    right_ranks: int = 0
    right_kind: int = 0
    steps: list[int] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)


def detect(rows: Pulses, hosts: dict[int, str]) -> tuple[Notice, ...]:
    """Return all notices about the rows of a pulse."""
    detector, record = Detector(hosts=dict(hosts)), Record()
    for start in range(0, len(rows), _BATCH):
        record.take(detector.advance(rows.take(slice(start, start + _BATCH))))
    record.take(detector.finish())
    return record.listed


def about(notice: Notice, truth: PulseTruth) -> bool:
    """Return whether a notice is about a fault, whether or not its ranks are right."""
    end = truth.end_step
    if notice.noticed_step < truth.from_step or (end and notice.noticed_step > end + _LATE):
        return False
    if truth.kind in (NoticeKind.HANG, NoticeKind.SILENT):
        return notice.kind is truth.kind
    if truth.kind is NoticeKind.IMBALANCE:
        return notice.kind is truth.kind and bool(set(notice.ranks) & set(truth.ranks))
    if truth.kind is NoticeKind.SLOW_JOB:
        return notice.kind in _OF_JOB and not notice.ranks
    if truth.kind is NoticeKind.SPELLS and not truth.ranks:
        return notice.kind in _OF_RANKS
    return notice.kind in _OF_RANKS and bool(set(notice.ranks) & set(truth.ranks))


def _score(
    notices: Sequence[Notice], truths: Sequence[PulseTruth], step_s: float, tally: Tally
) -> list[Notice]:
    """Add the notices to a tally, and return those that are about none of the faults."""
    for truth in truths:
        of_fault = [notice for notice in notices if about(notice, truth)]
        tally.drawn += 1
        if not of_fault:
            continue
        first = min(of_fault, key=lambda notice: notice.noticed_step)
        tally.noticed += 1
        late = first.noticed_step - truth.from_step
        tally.steps.append(late)
        tally.seconds.append((late + 1) * step_s)
        tally.right_ranks += all(notice.ranks == truth.ranks for notice in of_fault)
        tally.right_kind += any(notice.kind is truth.kind for notice in of_fault)
    return [notice for notice in notices if not any(about(notice, truth) for truth in truths)]


def main() -> None:
    """Print the table, and a last line with its sums."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1_000_000)
    parser.add_argument("--jobs", type=int, default=260, help="jobs, a third of them healthy")
    parser.add_argument("--steps", type=int, default=4000, help="steps of a healthy job")
    parser.add_argument("--healthy", action="store_true", help="all jobs are healthy")
    options = parser.parse_args()
    tallies = {kind.name: Tally() for kind in KINDS} | {name: Tally() for name in _HANGS}
    false: list[tuple[int, Notice]] = []
    hours = 0.0
    faulty = 0 if options.healthy else options.jobs * 2 // 3
    for number in range(faulty):
        seed = options.seed + number
        row = number % (len(KINDS) + len(_HANGS))
        if row < len(KINDS):
            kind = KINDS[row]
            drawn = draw_pulse(
                *(seed, kind.faults),
                steps=kind.steps,
                factor=kind.factor,
                lengths=kind.lengths,
                long_tails=kind.long_tails,
            )
            notices = detect(drawn.rows, drawn.hosts)
            wrong = _score(notices, drawn.truths, drawn.step_s, tallies[kind.name])
        else:
            wrong = _score_hang(seed, _HANGS[row - len(KINDS)], tallies)
        false += [(seed, notice) for notice in wrong]
    hours_false = 0
    for number in range(options.jobs - faulty):
        seed = options.seed + faulty + number
        drawn = draw_pulse(
            *(seed, ()),
            steps=options.steps,
            lengths=number % 3 == 0,
            long_tails=number % 3 == 1,
            step_s=1.0,
        )
        hours += drawn.rank_hours
        noticed = detect(drawn.rows, drawn.hosts)
        if number % 4 == 0:
            more, beat_hours = _healthy_with_beats(seed)
            noticed, hours = (*noticed, *more), hours + beat_hours
        hours_false += len(noticed)
        false += [(seed, notice) for notice in noticed]
    _print(tallies, false, hours_false, hours)


def _beating_job(seed: int, purpose: str) -> tuple[PulseJob, np.random.Generator]:
    rng = stream(seed, "pulse", purpose)
    job = PulseJob.healthy(PulseDials(steps=200, noise=float(rng.uniform(0.005, 0.03))), rng)
    for name in ("compile", "checkpoints", "evaluations"):
        EVENTS[name](job, rng)
    return job, rng


def _score_hang(seed: int, name: str, tallies: dict[str, Tally]) -> list[Notice]:
    job, rng = _beating_job(seed, name)
    rows, truth = hanging(job, rng, seconds=90, gone=name == "silent")
    tally = tallies[name]
    notices = detect(rows, job.hosts)
    wrong = _score(notices, [truth], 1.0, tally)
    last = int(rows.time_ns[rows.phase < 0].max())
    tally.seconds[-1:] = [(n.noticed_time_ns - last) / 1e9 for n in notices if about(n, truth)][:1]
    return wrong


def _healthy_with_beats(seed: int) -> tuple[tuple[Notice, ...], float]:
    job, rng = _beating_job(seed, "healthy beats")
    rows = with_beats(job, rng)
    hours = float(job.step_ns.sum() * job.dials.world / 3.6e12)
    return detect(rows, job.hosts), hours


def _print(
    tallies: dict[str, Tally], false: list[tuple[int, Notice]], healthy: int, hours: float
) -> None:
    out = sys.stdout
    out.write("| fault | drawn | noticed | steps, p50 | p90 | bar | right ranks | kind |\n")
    out.write("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |\n")
    bars = {kind.name: kind.bar for kind in KINDS}
    for name, tally in tallies.items():
        if not tally.drawn:
            continue
        if name in _HANGS:
            middle, most = _quantiles(tally.seconds)
            shown = (f"{middle:.0f} s", f"{most:.0f} s", "35 s")
        else:
            middle, most = _quantiles(tally.steps)
            shown = (f"{middle:.0f}", f"{most:.0f}", str(bars[name]))
        noticed = max(1, tally.noticed)
        out.write(
            f"| {name} | {tally.drawn} | {tally.noticed} | {' | '.join(shown)} "
            f"| {tally.right_ranks / noticed:.0%} | {tally.right_kind / noticed:.0%} |\n"
        )
    for (name,), number in Counter((notice.kind.value,) for _, notice in false).items():
        sys.stderr.write(f"false {name}: {number}\n")
    for seed, notice in false[:20]:
        sys.stderr.write(
            f"  job {seed}: {notice.kind} {notice.ranks} {notice.factor} "
            f"{notice.from_step}-{notice.noticed_step}\n"
        )
    summary = f"false {healthy} in {hours:.0f} rank-hours\n"
    if not any(tally.drawn for tally in tallies.values()):
        out.write(summary)
        return
    slow = [tallies[f"rank {share} %"] for share in (10, 50)]
    ranks = [tally for name, tally in tallies.items() if name not in _HANGS and tally.noticed]
    right = sum(t.right_ranks for t in ranks) / max(1, sum(t.noticed for t in ranks))
    out.write(
        f"slow 10 %: {_quantiles(slow[0].steps)[1]:.0f} steps, "
        f"slow 50 %: {_quantiles(slow[1].steps)[1]:.0f} steps, "
        f"right {100 * right:.1f} %, {summary}"
    )


def _quantiles(values: Sequence[float]) -> tuple[float, float]:
    """Return the median and the 90th percentile; NaN for an empty list."""
    if not values:
        return float("nan"), float("nan")
    return float(np.median(values)), float(np.quantile(values, 0.9, method="higher"))


if __name__ == "__main__":
    main()
