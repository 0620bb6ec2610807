"""The page of rules: what each says in words, who hears of it, and the form that changes it."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from markupsafe import Markup

from app.alerts.notices.facts import TITLES
from app.alerts.rules import CauseFound, Hanging, NoData, Noticed, Weekly
from app.analysis.diagnosis.causes.registry import title_of
from app.dashboard.alerts.parts import AUDIENCES, dead
from app.dashboard.alerts.rule_form import rule_form
from app.dashboard.ui.format import count, listing, percent, plural
from app.dashboard.ui.moments import weekly
from app.dashboard.ui.parts import StateLabel

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from datetime import datetime
    from uuid import UUID

    from app.alerts.rules import Rule, Selector, Threshold
    from app.dashboard.alerts.rule_form import RuleForm
    from app.services.alerts.channels.reads import ChannelView
    from app.services.alerts.incident_reads import IncidentRow

ON: Final = StateLabel("done", "On", 0)
OFF: Final = StateLabel("silenced", "Off", 1, quiet=True)

# Names that are read; the rest is counted.
NAMED: Final = 2


@dataclass(frozen=True, slots=True)
class RuleLine:
    """A rule in the list."""

    id: UUID
    url: str
    name: str
    state: StateLabel
    enabled: bool
    condition: str
    jobs: str
    told: str
    unheard: bool
    open: str
    chosen: bool


@dataclass(frozen=True, slots=True)
class RulesPage:
    """The page."""

    title: str
    heading: str
    states: Sequence[tuple[str, str]]
    list_title: str
    lines: Sequence[RuleLine]
    form_title: str
    form: RuleForm


def rules_page(
    rules: Sequence[Rule],
    channels: Sequence[ChannelView],
    present: Sequence[IncidentRow],
    chosen: Rule | None,
    now: datetime,
) -> RulesPage:
    """Return the page of rules.

    Parameters
    ----------
    chosen : Rule or None
        The one in the form; None: a new one.
    """
    held = Counter(id_ for row in present for id_ in row.incident.rules)
    lines = [_line(rule, channels, held[rule.id], now, chosen=rule == chosen) for rule in rules]
    on = sum(rule.enabled for rule in rules)
    return RulesPage(
        title=f"Rule {chosen.name}" if chosen else "Rules",
        heading=_heading(on, len(present)),
        states=_states(lines),
        list_title=_list_title(lines, held),
        lines=lines,
        form_title=chosen.name if chosen else "A new rule",
        form=rule_form(chosen, channels),
    )


def condition_words(rule: Rule) -> str:
    """Return a condition as a sentence: ``S of 1.1× or more, 2 sessions in a row``."""
    condition = rule.condition
    if isinstance(condition, Weekly):
        weekday = condition.weekday.capitalize()
        return f"A summary of the week, {weekday}s at {condition.hour:02}:00 UTC"
    if isinstance(condition, NoData):
        limits = []
        if condition.intervals is not None:
            limits.append(f"{condition.intervals:g} usual intervals")
        if condition.minutes is not None:
            limits.append(f"{condition.minutes:g} min")
        return f"No session for {' and '.join(limits)}"
    if isinstance(condition, Hanging):
        return f"A hang with {_percent(condition.confidence)} confidence, at once"
    if isinstance(condition, Noticed):
        kinds = [TITLES[kind].lower() for kind in condition.kinds]
        what = f"Noticed in the pulse{f': {_some(kinds)}' if kinds else ''}"
        return f"{what}, {'at once' if condition.at_once else 'once a session confirms it'}"
    if isinstance(condition, CauseFound):
        named = [title_of(cause).lower() for cause in condition.causes]
        what = f"{_some(named)} with" if named else "Any cause with"
        start = f"{what[0].upper()}{what[1:]} {_percent(condition.confidence)} confidence"
    else:
        start = _number(condition)
    return f"{start}, {_sessions(rule.consecutive)}"


def _shown(rule: Rule, now: datetime) -> str:
    """Return a condition as the page shows it: the time of a summary is the reader's."""
    if isinstance(rule.condition, Weekly):
        return Markup("A summary of the week, {}").format(weekly(rule.condition.due(now)))
    return condition_words(rule)


def jobs_words(selector: Selector) -> str:
    """Return which jobs a selector means."""
    parts = []
    if selector.jobs:
        parts.append(_some(list(selector.jobs)))
    if selector.labels:
        parts.append(_some([f"{name} {value}" for name, value in selector.labels.items()]))
    importance = set(selector.importance)
    if importance == {"normal", "high"}:
        parts.append("not low importance")
    elif importance and importance != {"low", "normal", "high"}:
        parts.append(f"{listing(sorted(importance))} importance")
    if selector.except_labels:
        left_out = [f"{name} {value}" for name, value in selector.except_labels.items()]
        parts.append(f"not {_some(left_out)}")
    return ", ".join(parts) or "all"


def told(rule: Rule, channels: Sequence[ChannelView]) -> list[str]:
    """Return the names of the channels that hear of a rule, as far as they hear anything."""
    silent = {channel.id for channel in dead(channels)}
    return [
        channel.name
        for channel in channels
        if channel.enabled
        and channel.id not in silent
        and (channel.id in rule.channels if rule.channels else channel.audience == rule.audience)
    ]


def _number(condition: Threshold) -> str:  # noqa: PLR0911 - a line for each kind
    value = condition.at_least
    match condition.kind:
        case "headline":
            return f"Slowdown of {value:g}× or more"
        case "slowdown":
            return f"S of {value:g}× or more"
        case "waste":
            return f"Waste by S of {_percent(value)} or more"
        case "gpu_hours_lost":
            return f"{value:g} GPU-hours or more lost by S"
        case "discrepancy":
            return f"Discrepancy of {_percent(value)} or more"
        case "regression":
            return f"Steps at least {_percent(value)} longer than usual"
        case "budget.between_steps":
            return f"{_percent(value)} or more of the time lost between steps"
        case "budget.slow_together":
            return f"{_percent(value)} or more of the time lost as all workers compute slower"


def _sessions(number: int) -> str:
    return "at once" if number == 1 else f"{number} sessions in a row"


def _line(
    rule: Rule, channels: Sequence[ChannelView], held: int, now: datetime, *, chosen: bool
) -> RuleLine:
    names = told(rule, channels)
    whom = "these channels" if rule.channels else AUDIENCES[rule.audience]
    return RuleLine(
        id=rule.id,
        url=f"/rules/{rule.id}",
        name=rule.name,
        state=ON if rule.enabled else OFF,
        enabled=rule.enabled,
        condition=_shown(rule, now),
        jobs=jobs_words(rule.selector),
        told=f"{whom}: {_some(names)}" if names else f"{whom}: no channel",
        unheard=rule.enabled and not names,
        open=count(held) if held else "none",
        chosen=chosen,
    )


def _heading(on: int, present: int) -> str:
    if not on:
        return "No rule is on: no messages are sent"
    watch = "One rule is on" if on == 1 else f"{count(on)} rules are on"
    if not present:
        return f"{watch}, and nothing is open"
    return f"{watch}; {plural(present, 'incident')} {'is' if present == 1 else 'are'} open"


def _list_title(lines: Sequence[RuleLine], held: Mapping[UUID, int]) -> str:
    unheard = [line.name for line in lines if line.unheard]
    if unheard and len(unheard) == sum(line.enabled for line in lines):
        return "No rule reaches a channel"
    if unheard:
        return f"{_some(unheard)} {'reaches' if len(unheard) == 1 else 'reach'} no channel"
    most = max(lines, key=lambda line: held.get(line.id, 0), default=None)
    if most is not None and held.get(most.id):
        return f"{most.name} holds {plural(held[most.id], 'open incident')}"
    return "Nothing holds at present" if lines else "There is no rule"


def _states(lines: Sequence[RuleLine]) -> list[tuple[str, str]]:
    on = sum(line.enabled for line in lines)
    unheard = sum(line.unheard for line in lines)
    found = [(ON.glyph, f"{count(on)} on")]
    if on < len(lines):
        found.append((OFF.glyph, f"{count(len(lines) - on)} off"))
    if unheard:
        verb = "reaches" if unheard == 1 else "reach"
        found.append(("warn", f"{count(unheard)} {verb} no channel"))
    return found


def _percent(share: float) -> str:
    return percent(share, 0 if float(f"{100 * share:.9g}").is_integer() else 1)


def _some(names: list[str]) -> str:
    if len(names) <= NAMED + 1:
        return listing(names)
    return f"{', '.join(names[:NAMED])} and {len(names) - NAMED} more"
