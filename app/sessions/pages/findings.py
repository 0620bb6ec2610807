"""Texts of a session's page: titles of figures, the slowdown in words, hosts of workers."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from itertools import groupby
from typing import Final, TypedDict

from markupsafe import Markup

from app.analysis.diagnosis.causes.kind import Plan
from app.analysis.diagnosis.causes.registry import KINDS, cause_of, title_of
from app.analysis.diagnosis.finding import UNKNOWN
from app.analysis.diagnosis.headline import WHY_S_DIFFERS, Headline, HeadlineKind, why_published
from app.analysis.diagnosis.locations import Worker
from app.analysis.replay.confidence import Interval
from app.analysis.report.document import NamedCause, Recommendation, Report
from app.analysis.report.session_verdict import GpuOfWorker
from app.analysis.trace.rank_metadata import node_label
from app.web.format import (
    NBSP,
    count,
    interval,
    listing,
    percent,
    plural,
    ratio,
    rough_percent,
    seconds,
    times,
    worker,
)
from app.web.parts import Row

# Decimals of the slowdown and its interval: as shown first, and as exact figures.
SHOWN_DIGITS: Final = 2
EXACT_DIGITS: Final = 3


def shown_interval(shown: Headline) -> str:
    """Return the 95 % interval of the slowdown, rounded like the slowdown."""
    if shown.ci95 is None:
        return "no interval"
    text = interval(*shown.ci95, SHOWN_DIGITS)
    low, high = (f"{bound:.{SHOWN_DIGITS}f}" for bound in shown.ci95)
    return f"95{NBSP}%: {'within 0.01' if low == high else text}"


def whole(shown: Headline) -> str:
    """Return the exact slowdown in words, with its interval or the reason why it has none."""
    return f"{times(shown.slowdown, EXACT_DIGITS)}, {_interval_or_why(shown)}"


# Definition of S, in words.
_S_DEFINED: Final = "step time as replayed \N{DIVISION SIGN} step time with all durations ideal"


def against(shown: Headline) -> str:
    """Return the definition of the slowdown in words: step time ÷ reference step time."""
    if shown.kind.without_causes:
        return "step time \N{DIVISION SIGN} step time without its causes"
    return _S_DEFINED


def step_slowdowns(report: Report) -> list[float]:
    """Return the slowdown of each step; their mean is the slowdown of the job.

    Reports contain simulated ÷ ideal time of each step, whose mean is S. If the job's slowdown is
    relative to the job without its causes, every step is scaled by the same factor.
    """
    factor = report.headline.slowdown / report.slowdown
    return [value * factor for value in report.step_slowdown]


def exact_rows(report: Report) -> tuple[Row, ...]:
    """Return the exact numbers behind the slowdown, with their intervals and definitions."""
    shown = report.headline
    published = shown.kind is HeadlineKind.PUBLISHED
    why = f"; it is the published S: {why_published(named=bool(report.causes))}"
    rows = [
        Row(
            "Slowdown",
            times(shown.slowdown, EXACT_DIGITS),
            _note(_interval_or_why(shown), against(shown) + (why if published else "")),
        )
    ]
    if not published:
        rows.append(
            Row(
                "S, as published",
                times(report.slowdown, EXACT_DIGITS),
                _note(
                    "" if report.slowdown_ci95 is None else _exact(report.slowdown_ci95),
                    f"{_S_DEFINED}; {WHY_S_DIFFERS}",
                ),
            )
        )
    slowdown, dp, pp = report.worst_worker()
    between = {item.worker: item.ci95 for item in report.by_worker.worst}.get((dp, pp))
    rows += [
        Row(
            Markup("S<sub>w</sub> of worker {}, the highest").format(worker(dp, pp)),
            times(slowdown, EXACT_DIGITS),
            _note(
                "" if between is None else _exact(between),
                "S of the job if only this worker kept its recorded durations; the map and the "
                "table have that of each worker",
            ),
        ),
        Row(
            "Lost of each step",
            percent(shown.waste),
            "1 \N{MINUS SIGN} 1 \N{DIVISION SIGN} slowdown; no fix saves more",
        ),
        Row(
            "Each step",
            f"{times(min(step_slowdowns(report)), EXACT_DIGITS)} to "
            f"{times(max(step_slowdowns(report)), EXACT_DIGITS)}",
            "step time as replayed \N{DIVISION SIGN} ideal step time"
            + (
                ""
                if published
                else f", times {shown.slowdown / report.slowdown:.{EXACT_DIGITS}f}: the ideal "
                "contains the causes"
            ),
        ),
    ]
    return tuple(rows)


def _interval_or_why(shown: Headline) -> str:
    if shown.ci95 is not None:
        return _exact(shown.ci95)
    return f"no interval: {shown.ci95_reason}" if shown.ci95_reason else "no interval"


def _exact(ci95: Interval) -> str:
    return f"95{NBSP}%: {interval(*ci95, EXACT_DIGITS)}"


def _note(*parts: str) -> str:
    return "; ".join(filter(None, parts))


Ranked = list[tuple[float, int, int]]

# Costs below this share of a step are not mentioned.
NEGLIGIBLE: Final = 0.01
# A worker explains the job's slowdown alone if it costs at least this share of the lost time.
EXPLAINED_SHARE: Final = 0.9
# Steps count as equally slow if their slowdowns differ by less than this.
ALIKE: Final = 0.1
# A worker stands out if its cost is at least this share of the worst worker's cost.
OUTSTANDING_SHARE: Final = 0.5
# Limit of the workers named in a title.
NAMED_WORKERS: Final = 3
# A worker is slow if the ratio of its forward or backward time to its stage's peers is at least
# this.
SLOW_RATIO: Final = 1.05
# All steps count as slow if the fastest step has at least this share of the job's excess time.
STEADY_SHARE: Final = 0.5
# A set of workers explains a slowdown if fixing the set recovers at least this share of the lost
# time.
MAJORITY: Final = 0.5
# Operation types that cost less than this share of the worst type's cost are left out.
WORTH_NAMING: Final = 0.1
# If a step loses a smaller share than this, no cause has to explain the loss.
UNEXPLAINED: Final = 0.05
# The paper's bound: from this correlation on, varying sequence lengths are the cause.
CORRELATION_BOUND: Final = 0.9


def cost(slowdown: float) -> float:
    """Return the share of a step that a slowdown costs: 1 − 1/S."""
    return 1 - 1 / slowdown if slowdown > 0 else 0.0


def workers_of(cause: NamedCause, report: Report) -> frozenset[Worker]:
    """Return the workers that a cause names: as such, or as a DP rank, a stage or a link."""
    where, sizes = cause.where, report.sizes
    links = {(dp, pp) for dp, *ends in where.links or () for pp in ends}
    if where.workers or links:
        return frozenset(where.workers) | links
    stages = {stage for stage in (where.stage, *where.stages) if stage is not None}
    if where.dp is None and not stages:
        return frozenset()
    ranks = range(sizes.dp) if where.dp is None else [where.dp]
    return frozenset((dp, pp) for dp in ranks for pp in stages or range(sizes.pp))


def _unless_named(workers: Collection[Worker], report: Report) -> str:
    """Return the clause about the first cause, unless the causes name all of the workers."""
    named = frozenset[Worker]().union(*(workers_of(cause, report) for cause in report.causes))
    return "" if named.issuperset(workers) else f"; {_first_cause(report)}"


def _first_cause(report: Report) -> str:
    """Return the words for the first cause and its place, which a finding must not contradict."""
    first = next((cause for cause in report.causes if cause.cause != UNKNOWN), None)
    if first is None:
        return "no cause is named"
    title, workers = title_of(first.cause), first.where.workers
    place = f", on worker {worker(*workers[0])}" if len(workers) == 1 else ""
    return f"the cause named is {title[:1].lower()}{title[1:]}{place}"


def map_finding(report: Report) -> str:
    """Return the title of the worker map: the workers that stand out and their cost.

    A worker's cost is that of all its operations, so it may differ from the cost in the verdict.
    """
    ranked = report.ranked_workers()
    worst = cost(ranked[0][0])
    if worst < NEGLIGIBLE:
        return f"No worker alone costs 1{NBSP}% of a step"
    outstanding = [item for item in ranked if cost(item[0]) >= OUTSTANDING_SHARE * worst]
    rest = ranked[len(outstanding) :]
    if len(outstanding) <= NAMED_WORKERS:
        return _named(outstanding, rest, report)
    low, high = rough_percent(cost(outstanding[-1][0])), rough_percent(worst)
    costs = high if low == high else f"{low} to {high}"
    for axis, name in ((2, "Stage"), (1, "DP rank")):
        places = {item[axis] for item in outstanding}
        if len(places) == 1:
            text = f"{name} {places.pop()} stands out: its workers alone cost {costs} of a step"
            return text + _addition_if_unnamed(outstanding, report)
    return (
        f"No one place stands out: {count(len(outstanding))} workers alone cost {costs} of a step"
    )


def _addition_if_unnamed(outstanding: Ranked, report: Report) -> str:
    """Return the clause about outstanding workers, unless the causes name all of them."""
    addition = _unless_named([item[1:] for item in outstanding], report)
    return f", whatever the reason{addition}" if addition else ""


def _named(outstanding: Ranked, rest: Ranked, report: Report) -> str:
    names = listing([worker(dp, pp) for _, dp, pp in outstanding])
    addition = _addition_if_unnamed(outstanding, report)
    if len(outstanding) == 1 and not addition and _explains(outstanding[0][0], report):
        head = f"Worker {names} alone explains the slowdown"
    elif len(outstanding) == 1:
        head = f"Worker {names} alone costs {rough_percent(cost(outstanding[0][0]))} of every step"
    else:
        costs = listing([rough_percent(cost(item[0])) for item in outstanding])
        head = f"Workers {names} alone cost {costs} of every step"
    head += addition
    if not rest or addition:
        return head
    bound = max(1, math.ceil(100 * max(0.0, cost(rest[0][0])) + 1e-9))
    return f"{head}; no other costs {bound}{NBSP}%"


def _explains(slowdown: float, report: Report) -> bool:
    """Return whether a worker of this slowdown alone explains the slowdown of the job."""
    lost = min(cost(report.slowdown), report.headline.waste)
    most = max(cost(report.slowdown), report.headline.waste)
    return cost(slowdown) >= EXPLAINED_SHARE * lost and cost(slowdown) >= MAJORITY * most


def workers_finding(report: Report) -> str:
    """Return the title of the worker table: the workers slower than their peers."""
    slow = slow_workers(report)
    if not slow:
        bound = percent(SLOW_RATIO - 1, 0)
        return f"No worker computes {bound} slower than its stage's peers"
    addition = _unless_named([item[:2] for item in slow], report)
    if len(slow) == 1:
        dp, pp, forward, backward = slow[0]
        how = f"forward {times(forward)}, backward {times(backward)}"
        if addition:
            return f"Worker {worker(dp, pp)} computes slower than its peers, {how}{addition}"
        return f"Only {worker(dp, pp)} is slow: {how}"
    if len(slow) <= NAMED_WORKERS:
        names = listing([worker(dp, pp) for dp, pp, _, _ in slow])
        return f"Workers {names} compute slower than their peers{addition}"
    total = report.sizes.dp * report.sizes.pp
    return f"{count(len(slow))} of {count(total)} workers compute slower than their peers{addition}"


def slow_workers(report: Report) -> list[tuple[int, int, float, float]]:
    """Return (dp, pp, forward ratio, backward ratio) of workers slower than their stage's peers."""
    by_worker = report.by_worker
    slow = [
        (dp, pp, forward or 1.0, backward or 1.0)
        for dp, (forwards, backwards) in enumerate(
            zip(by_worker.forward_ratio, by_worker.backward_ratio, strict=True)
        )
        for pp, (forward, backward) in enumerate(zip(forwards, backwards, strict=True))
        if max(forward or 1.0, backward or 1.0) >= SLOW_RATIO
    ]
    return sorted(slow, key=lambda item: -max(item[2], item[3]))


def strip_finding(report: Report) -> str:
    """Return the title of the strip of steps: whether all steps are equally slow."""
    slowdowns = step_slowdowns(report)
    low, high = min(slowdowns), max(slowdowns)
    total = report.headline.slowdown
    if len(slowdowns) == 1:
        return "One step: whether others are like it is not known"
    if cost(high) < 2 * NEGLIGIBLE:
        return "No step is slow"
    if low - 1 >= STEADY_SHARE * (total - 1) and total > 1 + NEGLIGIBLE:
        if high - low >= ALIKE:
            return f"Every step is slow, {times(low)} to {times(high)}"
        constant = ": the cause is constant" if _is_constant(report) else ""
        return f"Every step is about equally slow{constant}"
    bound = 1 + (high - 1) / 2
    beyond = sum(value > bound for value in slowdowns)
    worst = report.steps.analyzed[slowdowns.index(high)]
    return (
        f"{count(beyond)} of {count(len(slowdowns))} steps exceed {times(bound)}; "
        f"step {worst} reaches {times(high)}"
    )


def _is_constant(report: Report) -> bool:
    """Return whether the report names causes, and none of them comes and goes over the steps."""
    return bool(report.causes) and not any(
        cause.cause not in KINDS or KINDS[cause.cause].over_steps or cause.where.spells
        for cause in report.causes
    )


def fix_finding(report: Report) -> str:
    """Return the title of the list of fixes."""
    best = best_fix(report)
    if best is not None:
        title = best.title
        most = "up to " if best.at_most else ""
        return (
            f"Best fix: {title[:1].lower()}{title[1:]}; steps {most}"
            f"{rough_percent(best.predicted_gain)} shorter"
        )
    if report.headline.waste < NEGLIGIBLE:
        return "Nothing to fix"
    if report.verdict.level == "ok":
        return "Nothing to act on"
    return "No single change is known to help"


def best_fix(report: Report) -> Recommendation | None:
    """Return the recommended fix with the largest predicted gain; None without fixes."""
    fixes = report.recommendations
    return max(fixes, key=lambda fix: fix.predicted_gain, default=None)


def timeline_finding(step: int, recorded_s: float, ideal_s: float) -> str:
    """Return the title of the timeline of one step."""
    lost = recorded_s - ideal_s
    if lost <= NEGLIGIBLE * recorded_s:
        return f"Step {step} took {seconds(recorded_s)}, its ideal time"
    return f"Step {step} took {seconds(recorded_s)}, {seconds(lost)} of it above ideal"


def attribution_finding(report: Report) -> str:
    """Return the title of the attribution by operation type."""
    ranked = sorted(
        report.by_optype.items(),
        key=lambda item: -item[1],
    )
    worst = cost(ranked[0][1]) if ranked else 0.0
    slow = [item for item in ranked if cost(item[1]) >= max(NEGLIGIBLE, WORTH_NAMING * worst)]
    if not slow:
        return f"No operation type alone costs 1{NBSP}% of a step"
    first, rest = slow[0], slow[1:2]
    if {name for name, _ in slow} <= {"forward-compute", "backward-compute"}:
        parts = ", ".join(f"{name.split('-')[0]} {times(value)}" for name, value in slow)
        return f"Computing costs most: {parts}"
    text = f"{first[0]} costs most: {times(first[1])}"
    return f"{text}, then {rest[0][0]} {times(rest[0][1])}" if rest else text


def causes_finding(report: Report) -> str:
    """Return the title of the list of causes."""
    causes = report.causes
    if not causes and report.headline.waste < UNEXPLAINED:
        return "There is too little to explain"
    if not causes or causes[0].cause == "unknown":
        return "The cause is not known"
    first = causes[0]
    name = title_of(first.cause)
    share = first.contribution or 0.0
    if share >= 1 - NEGLIGIBLE:
        return f"{name}: explains all of it"
    return f"{name}: explains {rough_percent(share)} of it"


def recovery_finding(report: Report) -> str:
    """Return the title of the table of recoverable time: M_W, M_S, k50."""
    m_w, m_s, k50 = report.m_w.rem, report.m_s.rem, report.k50
    if m_w is None or m_s is None:
        return "Too little is lost to say what would recover it"
    if m_w >= MAJORITY and m_w >= m_s:
        taken = len(report.m_w.workers)
        text = f"{plural(taken, 'worker')} would recover {_of_all(m_w)} the lost time"
        if k50 is not None and k50 < taken:
            few = f"{plural(k50, 'worker')} would recover half of the lost time"
            text = f"{few}, {count(taken)} {_of_all(m_w)} it"
        return text + _ideal(report.m_w.workers, m_w, report)
    if m_s >= MAJORITY:
        last = [(dp, report.sizes.pp - 1) for dp in range(report.sizes.dp)]
        text = f"The last stage would recover {_of_all(m_s)} the lost time"
        return text + _ideal(last, m_s, report)
    if k50 is not None:
        return f"It takes {plural(k50, 'worker')} to recover half of the lost time"
    return "Neither a few workers nor the last stage would recover half of it"


def _ideal(workers: Sequence[Worker], share: float, report: Report) -> str:
    """Return the clause on why ideal workers recover more than the causes that name them.

    An ideal worker is rid of the effects of all causes, also of those that do not name it.
    """
    explained = sum(
        cause.contribution or 0.0
        for cause in report.causes
        if (named := workers_of(cause, report)) and named <= frozenset(workers)
    )
    if explained >= MAJORITY * share:
        return ""
    if explained < NEGLIGIBLE:
        return f" if all they did were ideal; {_first_cause(report)}"
    return f" if all they did were ideal; the causes there explain {rough_percent(explained)}"


def _of_all(share: float) -> str:
    """Return a share in words; it may exceed 1, as ideal durations are means of all workers."""
    return "all of" if share >= 1 - NEGLIGIBLE / 2 else f"{rough_percent(share)} of"


def recorded_finding(report: Report) -> str:
    """Return the title of the recorded step times."""
    recorded = report.step_times.recorded
    low, high = seconds(min(recorded)), seconds(max(recorded))
    return f"Steps took {low} to {high}" if low != high else f"Every step took {low}"


def correlation_finding(report: Report) -> str:
    """Return the title of the scatter plot of forward and backward times."""
    r = report.fb_correlation.pearson
    if r is None:
        return "Sequence lengths: unknown"
    named = [cause.cause for cause in report.causes if cause.cause != UNKNOWN]
    lengths = cause_of(Plan.BALANCE_MICROBATCHES) in named
    if r >= CORRELATION_BOUND:
        addition = f"; {_first_cause(report)}" if named and not lengths else ""
        return f"Forward and backward rise together: r = {ratio(r)}, over 0.90{addition}"
    if lengths:
        return (
            f"Forward and backward rise together less than usual with lengths: r = {ratio(r)}, "
            "under 0.90; that they differ is seen over all stages and ranks"
        )
    return f"Sequence lengths are not the cause: r = {ratio(r)}, under 0.90"


def launch_finding(report: Report) -> str:
    """Return the title of the launch delays."""
    share = report.launch_slowdown - 1
    shares = report.launch_by_optype
    name = max(shares, key=lambda key: shares[key])
    if shares[name] < max(NEGLIGIBLE / 10, MAJORITY * sum(shares.values())):
        return f"Launch delays: {percent(share)} of a step"
    return f"Launch delays: {percent(share)} of a step, most before {name}"


def coverage_finding(report: Report) -> str:
    """Return the title of the table of coverage: which data are missing."""
    coverage, dropped = report.coverage, report.steps.dropped
    parts = []
    if coverage.missing:
        parts.append(f"{plural(len(coverage.missing), 'worker')} missing")
    if report.steps.odd:
        parts.append(f"{plural(len(report.steps.odd), 'step')} unlike the others left out")
    if dropped:
        parts.append(f"{plural(len(dropped), 'step')} left out")
    if coverage.chunks and coverage.chunks.ended_early:
        early = coverage.chunks.ended_early
        parts.append(
            f"the recording of {early[0].producer} ended early"
            if len(early) == 1
            else f"{plural(len(early), 'recording')} ended early"
        )
    if coverage.recreated.operations:
        parts.append(f"{plural(coverage.recreated.operations, 'lost operation')} re-created")
    if coverage.unanswered:
        unanswered = sum(coverage.unanswered.values())
        parts.append(f"{plural(unanswered, 'send')} without receives left out")
    if coverage.chunks and coverage.chunks.dropped.operations:
        repeated = coverage.chunks.dropped.operations
        parts.append(f"{plural(repeated, 'repeated operation')} dropped")
    if coverage.unknown_op_types:
        parts.append(f"{plural(len(coverage.unknown_op_types), 'unknown type')} of operation")
    if coverage.unmapped:
        things = plural(sum(unmapped.count for unmapped in coverage.unmapped), "thing")
        parts.append(f"{things} of the recording not mapped")
    text = listing(parts)
    return f"{text[:1].upper()}{text[1:]}" if parts else "Nothing is missing"


# Text in place of the host of a worker that was not recorded.
_MISSING: Final = "missing"


class GpuNames(TypedDict):
    """The distinct names of GPUs, and each worker's index into them; -1 if unknown."""

    names: list[str]
    of: list[int]


class Places(TypedDict):
    """Each worker's host, GPU and rank for the page's script, sorted by stage and DP rank.

    `hosts` is run-length encoded, (shown name or None, number of workers), to stay short for
    thousands of workers; `ranks` is given only if a host is unknown.
    """

    hosts: list[tuple[str | None, int]]
    gpus: GpuNames | None
    ranks: list[int] | None


def places_of(report: Report) -> Places:
    """Return the hosts and GPUs of the workers of a report."""
    by_rank = report.workers.rank
    ranks = [row[stage] for stage in range(len(by_rank[0])) for row in by_rank]
    guessed = report.whereabouts.guessed_hosts
    missing = {absent.rank for absent in report.coverage.missing}
    hosts = [
        (host and node_label(host, guessed=host in guessed), sum(1 for _ in alike))
        for host, alike in groupby(
            _MISSING if rank in missing else report.hosts.get(rank) for rank in ranks
        )
    ]
    return Places(
        hosts=hosts,
        gpus=_gpu_names(report) if report.gpus else None,
        ranks=ranks if any(host is None for host, _ in hosts) else None,
    )


def _gpu_names(report: Report) -> GpuNames:
    by_rank, gpu_of = report.workers.rank, GpuOfWorker(report)
    missing = {absent.worker for absent in report.coverage.missing}
    gpus = [
        "" if (dp, stage) in missing else gpu_of.words((dp, stage))
        for stage in range(len(by_rank[0]))
        for dp in range(len(by_rank))
    ]
    index_of = {gpu: index for index, gpu in enumerate(filter(None, dict.fromkeys(gpus)))}
    return GpuNames(names=list(index_of), of=[index_of.get(gpu, -1) for gpu in gpus])
