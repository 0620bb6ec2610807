"""The page of alert rules: conditions as text, notified channels, and the form of a rule."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, get_args
from uuid import UUID

from markupsafe import Markup

from app.analysis.diagnosis.causes import registry
from app.analysis.diagnosis.causes.registry import title_of
from app.analysis.replay.metrics import STRAGGLING
from app.incidents.channel_reads import ChannelView
from app.incidents.models.facts import STANDING_STILL, TITLES
from app.incidents.models.rules import (
    CauseFound,
    Escalation,
    Hanging,
    Importance,
    NoData,
    Noticed,
    Rule,
    Selector,
    Severity,
    Threshold,
    Weekday,
    Weekly,
)
from app.incidents.pages.parts import AUDIENCES, dead_channels
from app.incidents.reads import IncidentRow
from app.web import html
from app.web.format import count, listing, percent, plural
from app.web.forms import Control, Field, Option
from app.web.moments import weekly
from app.web.parts import StateLabel
from app.web.tables import Drawn, Shown, Table, drawn

CONDITIONS: Final[Mapping[str, str]] = {
    "headline": "Slowdown, against the job without its causes",
    "slowdown": "Published slowdown S",
    "waste": "Waste by S, % of the GPU time",
    "gpu_hours_lost": "GPU-hours lost by S in a session",
    "regression": "Regression, % of the step time",
    "discrepancy": "Discrepancy of the replay, %",
    "budget.between_steps": "Lost between steps, % of the time",
    "budget.slow_together": "Lost as all workers compute slower, % of the time",
    "cause": "A cause, by its confidence",
    "no_data": "No data",
    "hang": "A hang, by the files of its ranks or the pulse",
    "notice": "A slow rank or job, noticed in the pulse",
    "weekly": "No condition: a summary every week",
}
# Fields of conditions that are a percentage in the form and a share of 1 in the rule.
SHARES: Final = (
    "waste",
    "regression",
    "discrepancy",
    "cause",
    "budget.between_steps",
    "budget.slow_together",
)

NEW: Final = Rule(
    id=UUID(int=0), name="", condition=Threshold("headline", at_least=STRAGGLING, clears_below=1.05)
)


@dataclass(frozen=True, slots=True)
class RuleForm:
    """The form of a rule; `id` is empty for a new rule."""

    id: str
    enabled: bool
    name: str
    kind: Field
    at_least: Field
    clears_below: Field
    causes: Field
    kinds: Field
    at_once: Field
    intervals: Field
    minutes: Field
    weekday: Field
    hour: Field
    consecutive: Field
    clear_sessions: Field
    jobs: Field
    labels: Field
    except_labels: Field
    importance: Field
    severity: Field
    audience: Field
    channels: Field
    escalates_at: Field
    escalates_from: Field
    escalates_after: Field
    escalates_to: Field


def rule_form(chosen: Rule | None, channels: Sequence[ChannelView]) -> RuleForm:
    """Return the form of a rule, or of a new rule."""
    rule = chosen or NEW
    plan = rule.escalation or Escalation()
    condition: Any = rule.condition
    scale = 100.0 if condition.kind in SHARES else 1.0
    # A condition on a cause has a confidence as its threshold.
    at_least = getattr(condition, "at_least", getattr(condition, "confidence", None))
    listed = [Option(str(channel.id), channel.name) for channel in channels]
    causes = [Option(kind.name, kind.title, kind.sign) for kind in registry.KINDS.values()]
    return RuleForm(
        id=str(rule.id) if chosen else "",
        enabled=rule.enabled,
        name=rule.name,
        kind=_select("condition.kind", "Condition", condition.kind, CONDITIONS.items()),
        at_least=_form_number("condition.at_least", "From", at_least, scale),
        clears_below=_form_number(
            "condition.clears_below", "Ends below", getattr(condition, "clears_below", None), scale
        ),
        causes=_checks(
            "condition.causes",
            "Causes (none chosen: any of them)",
            getattr(condition, "causes", ()),
            causes,
        ),
        kinds=_checks(
            "condition.kinds",
            "What is noticed (none chosen: any of them)",
            getattr(condition, "kinds", ()),
            [Option(kind, TITLES[kind]) for kind in TITLES if kind not in STANDING_STILL],
        ),
        at_once=_select(
            "condition.at_once",
            "Fires",
            "true" if getattr(condition, "at_once", False) else "false",
            [("false", "once a session confirms it, or none came"), ("true", "at once")],
        ),
        intervals=_form_number(
            "condition.intervals", "Usual intervals", getattr(condition, "intervals", None)
        ),
        minutes=_form_number("condition.minutes", "Minutes", getattr(condition, "minutes", None)),
        weekday=_select(
            "condition.weekday",
            "Day",
            getattr(condition, "weekday", "monday"),
            [(day, day.capitalize()) for day in get_args(Weekday)],
        ),
        hour=_form_number("condition.hour", "Hour, UTC", getattr(condition, "hour", 7)),
        consecutive=_form_number("consecutive", "Sessions in a row that fire it", rule.consecutive),
        clear_sessions=_form_number(
            "clear_sessions", "Good sessions in a row that end it", rule.clear_sessions
        ),
        jobs=_form_line(
            "jobs",
            "lines",
            "Job names; * and ? stand for any letters",
            rule.selector,
            "all; or llama-*, vision-?",
        ),
        labels=_form_line(
            "labels", "pairs", "Labels", rule.selector, "all; or owner=ann, project=vision"
        ),
        except_labels=_form_line(
            "except_labels",
            "pairs",
            "Except jobs with",
            rule.selector,
            "none; or demo=true",
        ),
        importance=_checks(
            "selector.importance",
            "Importance (none chosen: any)",
            rule.selector.importance or get_args(Importance),
            [Option(value, value) for value in get_args(Importance)],
        ),
        severity=_select(
            "severity", "Severity", rule.severity, ((value, value) for value in get_args(Severity))
        ),
        audience=_select("audience", "Notify the channels of", rule.audience, AUDIENCES.items()),
        channels=_checks("channels", "Or notify exactly these channels", rule.channels, listed),
        escalates_at=_form_number(
            "escalation.at_least", "Becomes critical from", plan.at_least, scale, "never"
        ),
        escalates_from=_form_number(
            "escalation.gpu_hours_per_hour",
            "Or from GPU-hours lost each hour",
            plan.gpu_hours_per_hour,
            example="never",
        ),
        escalates_after=_form_number(
            "escalation.after_minutes",
            "Or when not acknowledged for, min",
            plan.after_minutes,
            example="never",
        ),
        escalates_to=_checks("escalation.channels", "Further recipients", plan.channels, listed),
    )


def _form_number(
    path: str, label: str, value: float | None, scale: float = 1.0, example: str = ""
) -> Field:
    # Write twelve digits, because 0.05 × 100 is 5.000000000000001 in floating point.
    written = "" if value is None else f"{scale * value:.12g}"
    return Field(_id(path), path, label, "number", value=written, example=example)


def _select(path: str, label: str, value: str, words: Iterable[tuple[str, str]]) -> Field:
    options = [Option(value, word) for value, word in words]
    return Field(_id(path), path, label, "select", value=value, options=options)


def _checks(
    path: str, label: str, chosen: Sequence[str | UUID], options: Sequence[Option]
) -> Field:
    return Field(_id(path), path, label, "checks", chosen=tuple(map(str, chosen)), options=options)


def _form_line(name: str, control: Control, label: str, selector: Selector, example: str) -> Field:
    """Return a field of the selector as a single line."""
    given = getattr(selector, name)
    written = [f"{key}={given[key]}" for key in given] if control == "pairs" else list(given)
    path = f"selector.{name}"
    return Field(
        _id(path),
        path,
        label,
        control,
        inline=True,
        value=", ".join(written),
        example=example,
    )


def _id(path: str) -> str:
    return f"rule-{path.replace('.', '-')}"


ON: Final = StateLabel("done", "On", 0)
OFF: Final = StateLabel("silenced", "Off", 1, quiet=True)

# Number of names that are written out; further names are counted.
NAMED_FIRST: Final = 2


@dataclass(frozen=True, slots=True)
class RulesPage:
    """The content of the page of rules."""

    title: str
    heading: str
    states: Sequence[tuple[str, str]]
    list_title: str
    table: Drawn
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
        The rule in the form; None for a new rule.
    """
    held = Counter(id_ for row in present for id_ in row.incident.rules)
    on = sum(rule.enabled for rule in rules)
    unheard = [rule.name for rule in rules if _reaches_no_channel(rule, channels)]
    states = [(ON.glyph, f"{count(on)} on")]
    if on < len(rules):
        states.append((OFF.glyph, f"{count(len(rules) - on)} off"))
    if unheard:
        verb = "reaches" if len(unheard) == 1 else "reach"
        states.append(("warn", f"{count(len(unheard))} {verb} no channel"))
    return RulesPage(
        title=f"Rule {chosen.name}" if chosen else "Rules",
        heading=_heading(on, len(present)),
        states=states,
        list_title=_list_title(rules, unheard, held),
        table=drawn(
            _columns(channels, held, chosen, now),
            rules,
            csv="/rules.csv",
            classes="inc",
            attributes=lambda rule: {"aria-selected": "true"} if rule == chosen else {},
        ),
        form_title=chosen.name if chosen else "A new rule",
        form=rule_form(chosen, channels),
    )


def condition_words(rule: Rule) -> str:
    """Return a condition as text: ``S of 1.1× or more, 2 sessions in a row``."""
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
        what = f"Noticed in the pulse{f': {_first_names(kinds)}' if kinds else ''}"
        return f"{what}, {'at once' if condition.at_once else 'once a session confirms it'}"
    if isinstance(condition, CauseFound):
        named = [title_of(cause).lower() for cause in condition.causes]
        what = f"{_first_names(named)} with" if named else "Any cause with"
        start = f"{what[0].upper()}{what[1:]} {_percent(condition.confidence)} confidence"
    else:
        start = _threshold_words(condition)
    many = rule.consecutive > 1
    return f"{start}, {f'{rule.consecutive} sessions in a row' if many else 'at once'}"


def jobs_words(selector: Selector) -> str:
    """Return the jobs of a selector as text."""
    parts = []
    if selector.jobs:
        parts.append(_first_names(list(selector.jobs)))
    if selector.labels:
        parts.append(_first_names([f"{name} {value}" for name, value in selector.labels.items()]))
    importance = set(selector.importance)
    if importance == {"normal", "high"}:
        parts.append("not low importance")
    elif importance and importance != {"low", "normal", "high"}:
        parts.append(f"{listing(sorted(importance))} importance")
    if selector.except_labels:
        left_out = [f"{name} {value}" for name, value in selector.except_labels.items()]
        parts.append(f"not {_first_names(left_out)}")
    return ", ".join(parts) or "all"


def notified_channels(rule: Rule, channels: Sequence[ChannelView]) -> list[str]:
    """Return the names of the working channels that a rule notifies."""
    dead = {channel.id for channel in dead_channels(channels)}
    return [
        channel.name
        for channel in channels
        if channel.enabled
        and channel.id not in dead
        and (channel.id in rule.channels if rule.channels else channel.audience == rule.audience)
    ]


def _threshold_words(condition: Threshold) -> str:  # noqa: PLR0911 - a line for each kind
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


def _reaches_no_channel(rule: Rule, channels: Sequence[ChannelView]) -> bool:
    return rule.enabled and not notified_channels(rule, channels)


def _columns(
    channels: Sequence[ChannelView], held: Mapping[UUID, int], chosen: Rule | None, now: datetime
) -> tuple[Shown[Rule], ...]:
    def name(rule: Rule) -> Markup:
        link = html.element(
            "a",
            rule.name,
            href=f"/rules/{rule.id}",
            aria_current="true" if rule == chosen else "",
        )
        words: str = condition_words(rule)
        if isinstance(rule.condition, Weekly):
            # The page shows times in the reader's time zone.
            due = weekly(rule.condition.due(now))
            words = Markup("A summary of the week, {}").format(due)
        return link + html.note(words)

    def notifies(rule: Rule) -> object:
        whom = "these channels" if rule.channels else AUDIENCES[rule.audience]
        names = notified_channels(rule, channels)
        text = f"{whom}: {_first_names(names) if names else 'no channel'}"
        return html.glyph("warn", text) if _reaches_no_channel(rule, channels) else text

    return (
        Shown("State", lambda rule: html.state(ON if rule.enabled else OFF)),
        Shown("Rule", name, of_cells="grow"),
        Shown("Jobs", lambda rule: jobs_words(rule.selector), classes="opt", of_cells="grow"),
        Shown("Notifies", notifies, classes="opt", of_cells="grow"),
        Shown(
            "Open",
            lambda rule: count(held[rule.id]) if held.get(rule.id) else "none",
            classes="num",
        ),
        Shown(html.element("span", "Turn on or off", class_="vh"), _turn_button, of_cells="num"),
    )


def _turn_button(rule: Rule) -> Markup:
    word = "off" if rule.enabled else "on"
    return html.element(
        "button",
        f"Turn {word}",
        type="button",
        class_="link operates",
        data_turn=str(rule.id),
        data_to="false" if rule.enabled else "true",
        aria_label=f"Turn {word} {rule.name}",
        disabled=True,
    )


def _heading(on: int, present: int) -> str:
    if not on:
        return "No rule is on: no messages are sent"
    watch = "One rule is on" if on == 1 else f"{count(on)} rules are on"
    if not present:
        return f"{watch}, and nothing is open"
    return f"{watch}; {plural(present, 'incident')} {'is' if present == 1 else 'are'} open"


def _list_title(rules: Sequence[Rule], unheard: list[str], held: Mapping[UUID, int]) -> str:
    if unheard and len(unheard) == sum(rule.enabled for rule in rules):
        return "No rule reaches a channel"
    if unheard:
        return f"{_first_names(unheard)} {'reaches' if len(unheard) == 1 else 'reach'} no channel"
    most = max(rules, key=lambda rule: held.get(rule.id, 0), default=None)
    if most is not None and held.get(most.id):
        return f"{most.name} holds {plural(held[most.id], 'open incident')}"
    return "Nothing holds at present" if rules else "There is no rule"


def _percent(share: float) -> str:
    return percent(share, 0 if float(f"{100 * share:.9g}").is_integer() else 1)


def _first_names(names: list[str]) -> str:
    if len(names) <= NAMED_FIRST + 1:
        return listing(names)
    return f"{', '.join(names[:NAMED_FIRST])} and {len(names) - NAMED_FIRST} more"


def rules_csv(rules: Sequence[Rule], channels: Sequence[ChannelView]) -> Table:
    """Return the table of rules as text, with the channels that each rule notifies."""
    return Table(
        ("id", "name", "enabled", "condition", "jobs", "severity", "audience", "channels"),
        (
            (
                *(rule.id, rule.name, rule.enabled, condition_words(rule)),
                *(
                    jobs_words(rule.selector),
                    rule.severity,
                    rule.audience,
                    notified_channels(rule, channels),
                ),
            )
            for rule in rules
        ),
    )
