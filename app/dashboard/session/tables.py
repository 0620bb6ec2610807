"""The tables of a report's page: workers, fixes, operation types, coverage."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from markupsafe import Markup

from app.analysis.wording import hours
from app.dashboard.look.format import (
    count,
    heat_color,
    interval,
    percent,
    plural,
    rough_percent,
    seconds,
    times,
    worker,
)
from app.dashboard.look.parts import Row
from app.dashboard.session import findings

Document = Mapping[str, Any]

# Rows of the worker table that are on the page at once; a button shows the others.
SHORT_TABLE: Final = 6
# Rows that are in the page at all; every worker is in the file.
LONG_TABLE: Final = 512
# Operation types in the table of launch delays.
LAUNCH_ROWS: Final = 4
# Steps that are named one by one where some were left out.
NAMED_STEPS: Final = 8


@dataclass(frozen=True, slots=True)
class WorkerRow:
    """A worker in the table beside the map; texts are empty where there is no data."""

    dp: int
    pp: int
    name: str
    place: str
    gpu: str
    slowdown: float | None
    slowdown_text: str
    hint: str
    color: str
    forward: float | None
    forward_text: str
    backward: float | None
    backward_text: str


@dataclass(frozen=True, slots=True)
class BarRow:
    """A line with a bar; `share` is the bar's length in per cent of the longest possible."""

    name: str
    share: float
    text: str
    second: str = ""
    strong: bool = False


@dataclass(frozen=True, slots=True)
class Workers:
    """The table of workers."""

    title: str
    rows: tuple[WorkerRow, ...]
    hosts: bool
    gpus: bool
    total: int
    note: str


@dataclass(frozen=True, slots=True)
class Fixes:
    """The fixes with their predicted step times, on one axis from 0 with the ideal marked."""

    title: str
    rows: tuple[BarRow, ...]
    ideal_share: float
    ideal: str
    detail: str
    saves: str
    empty: str


@dataclass(frozen=True, slots=True)
class Attribution:
    """Slowdown by operation type; bars from 1.0 to `top`."""

    title: str
    rows: tuple[BarRow, ...]
    top: str


def workers_table(document: Document) -> Workers:
    """Return the table of workers, slowest first; those without data come last."""
    ranked = findings.ranked_workers(document)
    exact = document["by_worker"]["exact"]
    missing = [
        (dp, pp) for dp, row in enumerate(exact) for pp, value in enumerate(row) if value is None
    ]
    places = [(dp, pp) for _, dp, pp in ranked] + missing
    intervals = {
        (dp, pp): interval(*item["ci95"])
        for item in document["by_worker"].get("worst", ())
        for dp, pp in [item["worker"]]
    }
    rest = ranked[SHORT_TABLE:]
    note = ""
    if rest:
        bound = math.floor(rest[0][0] * 1000 + 1) / 1000
        note = f"the other {count(len(rest))} are below {times(bound, 3)}"
    if missing:
        note += f"{'; ' if note else ''}{count(len(missing))} without data"
    return Workers(
        title=findings.workers_finding(document),
        rows=tuple(
            _worker_row(document, dp, pp, intervals.get((dp, pp))) for dp, pp in places[:LONG_TABLE]
        ),
        hosts=bool(document["hosts"]),
        gpus=bool(document["gpus"]),
        total=len(places),
        note=note,
    )


def _worker_row(document: Document, dp: int, pp: int, between: str | None) -> WorkerRow:
    by_worker, hosts = document["by_worker"], document["hosts"]
    rank = document["workers"]["rank"][dp][pp]
    slowdown = by_worker["exact"][dp][pp]
    forward, backward = by_worker["forward_ratio"][dp][pp], by_worker["backward_ratio"][dp][pp]
    rank_text = "" if rank is None else str(rank)
    return WorkerRow(
        dp=dp,
        pp=pp,
        name=worker(dp, pp),
        place=hosts.get(rank_text, "") if hosts else rank_text,
        gpu=document["gpus"].get(rank_text, ""),
        slowdown=slowdown,
        slowdown_text="no data" if slowdown is None else times(slowdown, 3),
        hint=f"95\N{NO-BREAK SPACE}%: {between}" if between else "",
        color="" if slowdown is None else heat_color(slowdown),
        forward=forward,
        forward_text="" if forward is None else times(forward),
        backward=backward,
        backward_text="" if backward is None else times(backward),
    )


def fixes_table(document: Document) -> Fixes:
    """Return the fixes, the best one first."""
    best = findings.best_fix(document)
    simulated = document["step_times"]["simulated"]
    now_s = sum(simulated) / len(simulated)
    if best is not None:
        # Late launches that have a cause are part of it.
        now_s = best["predicted_step_time"] / (1 - best["predicted_gain"])
    ideal = document["step_times"]["ideal"]
    ideal_s = sum(ideal) / len(ideal)
    fixes = sorted(document["recommendations"], key=lambda fix: -fix["predicted_gain"])
    longest = max([now_s, *(fix["predicted_step_time"] for fix in fixes)])
    rows = [BarRow("As it is", 100 * now_s / longest, seconds(now_s))]
    rows += [
        BarRow(
            fix["title"],
            100 * fix["predicted_step_time"] / longest,
            seconds(fix["predicted_step_time"]),
            percent(-fix["predicted_gain"]),
            strong=fix is best,
        )
        for fix in fixes
    ]
    per_hour = document["sizes"]["world"] * (best["predicted_gain"] if best else 0.0)
    negligible = findings.cost(document["slowdown"]) < findings.NEGLIGIBLE
    return Fixes(
        title=findings.fix_finding(document),
        rows=tuple(rows) if fixes else (),
        ideal_share=100 * ideal_s / longest,
        ideal=seconds(ideal_s),
        detail=best["detail"] if best else "",
        saves=f"{hours(per_hour)} GPU-hours each hour" if best else "",
        empty=f"The job loses {rough_percent(document['waste'])} of its time to stragglers."
        if negligible
        else "No replayed change (another machine for a worker, a lighter stage) shortens the "
        "step enough to be worth recommending.",
    )


def attribution_table(document: Document) -> Attribution:
    """Return slowdown by operation type, the slowest first."""
    by_type = {name: value for name, value in document["by_optype"].items() if value is not None}
    top = max(1.1, math.ceil(max(by_type.values(), default=1.0) * 10 + 1e-9) / 10)
    rows = [
        BarRow(
            name,
            100 * max(0.0, value - 1) / (top - 1),
            times(value, 3),
            percent(document["waste_by_optype"][name]),
        )
        for name, value in sorted(by_type.items(), key=lambda item: -item[1])
    ]
    return Attribution(findings.attribution_finding(document), tuple(rows), f"1.0 to {top:.1f}")


def recovered_rows(document: Document) -> tuple[Row, ...]:
    """Return what would bring the lost time back."""
    m_w, m_s, k50 = document["m_w"], document["m_s"], document["k50"]
    stage = document["sizes"]["pp"] - 1
    rows = [
        Row(
            Markup("Slowest 3\N{NO-BREAK SPACE}% of workers (M<sub>W</sub>)"),
            _share(m_w["rem"]),
            f"{plural(len(m_w['workers']), 'worker')}{_range(m_w)}; kept alone: "
            f"{_share(m_w['add'])}",
        ),
        Row(
            Markup("Last stage (M<sub>S</sub>)"),
            _share(m_s["rem"]),
            f"stage {stage}{_range(m_s)}; kept alone: {_share(m_s['add'])}"
            if stage
            else "there is one stage only",
        ),
    ]
    if k50 is not None:
        rows.append(Row("Half of it", plural(k50, "worker"), "fewest, in order of slowdown"))
    return tuple(rows)


def _range(contribution: Mapping[str, Any]) -> str:
    ci95 = contribution.get("ci95")
    if not ci95:
        return ""
    return f", 95\N{NO-BREAK SPACE}%: {percent(ci95[0], 0)} to {percent(ci95[1], 0)}"


def _share(value: float | None) -> str:
    return "cannot say: too little lost" if value is None else rough_percent(value)


def launch_rows(document: Document) -> tuple[Row, ...]:
    """Return the operation types whose launches are latest."""
    shares = sorted(document["launch_by_optype"].items(), key=lambda item: -item[1])
    return tuple(Row(name, percent(share, 2)) for name, share in shares[:LAUNCH_ROWS] if share > 0)


def coverage_rows(document: Document) -> tuple[Row, ...]:
    """Return what arrived, what was repaired and what was left out."""
    coverage, steps, clocks = document["coverage"], document["steps"], document["clocks"]
    dropped = steps["dropped"]
    unknown = coverage["unknown_op_types"]
    present, expected = coverage["ranks_present"], coverage["ranks_expected"]
    rows = [
        Row("Workers", f"{count(present)} of {count(expected)}", "one rank of each is traced"),
        Row("Operations", count(coverage["operations"])),
        *_recreated(coverage),
        Row("Steps analyzed", count(len(steps["analyzed"]))),
        Row("Steps left out", count(len(dropped)), _dropped(dropped)),
        Row("Clocks", "aligned" if clocks["aligned"] else "not aligned", _clock_note(clocks)),
        Row("Transfers below 0, cut", count(coverage["clamped_transfers"])),
        Row("Launch delays below 0, cut", count(coverage["clamped_launch_delays"])),
    ]
    if unknown:
        named = ", ".join(f"{name} ({count(number)})" for name, number in unknown.items())
        rows.append(Row("Operations of unknown types", count(sum(unknown.values())), named))
    # Reports from before such sends were left out do not say so.
    unanswered = coverage.get("unanswered") or {}
    if unanswered:
        total = count(sum(unanswered.values()))
        rows.append(Row("Sends without receives, left out", total, ", ".join(unanswered)))
    absent = coverage["absent_op_types"]
    if absent:
        rows.append(Row("Types not recorded", count(len(absent)), ", ".join(absent)))
    return tuple(rows)


def _recreated(coverage: Mapping[str, Any]) -> list[Row]:
    recreated = coverage.get("recreated")
    if recreated is None:
        return []
    by_type = recreated["by_optype"]
    named = ", ".join(f"{name} ({count(number)})" for name, number in by_type.items())
    return [Row("Of these re-created", count(recreated["operations"]), named)]


def _clock_note(clocks: Mapping[str, Any]) -> str:
    read = "starts are host clock readings" if clocks["absolute"] else "starts count from each step"
    return "; ".join([read, *clocks.get("warnings", ())])


def _dropped(dropped: list[Mapping[str, Any]]) -> str:
    named = [f"{item['step']}: {item['reason']}" for item in dropped[:NAMED_STEPS]]
    if len(dropped) > NAMED_STEPS:
        named.append(f"and {count(len(dropped) - NAMED_STEPS)} more")
    return ", ".join(named)
