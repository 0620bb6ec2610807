"""The form of a rule: its fields, filled with numbers as people write them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, get_args
from uuid import UUID

from app.alerts.notices.facts import STANDING_STILL, TITLES
from app.alerts.rules import Escalation, Importance, Rule, Severity, Threshold, Weekday
from app.analysis.diagnosis.causes import registry
from app.analysis.replay.metrics import STRAGGLING
from app.dashboard.alerts.parts import AUDIENCES
from app.dashboard.ui.forms import Field, Option

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from app.alerts.rules import Selector
    from app.dashboard.ui.forms import Control
    from app.services.alerts.channels.reads import ChannelView

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
# What the form shows in per cent, and the rule has as a share of 1.
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
    """The form; `id` is empty for a rule that is still to be added."""

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
    """Return the form of a rule, or of a new one."""
    rule = chosen or NEW
    plan = rule.escalation or Escalation()
    condition: Any = rule.condition
    scale = 100.0 if condition.kind in SHARES else 1.0
    # A cause has a confidence where numbers have a threshold.
    at_least = getattr(condition, "at_least", getattr(condition, "confidence", None))
    listed = [Option(str(channel.id), channel.name) for channel in channels]
    causes = [Option(kind.name, kind.title, kind.sign) for kind in registry.KINDS.values()]
    return RuleForm(
        id=str(rule.id) if chosen else "",
        enabled=rule.enabled,
        name=rule.name,
        kind=_select("condition.kind", "Condition", condition.kind, CONDITIONS.items()),
        at_least=_number("condition.at_least", "From", at_least, scale),
        clears_below=_number(
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
        intervals=_number(
            "condition.intervals", "Usual intervals", getattr(condition, "intervals", None)
        ),
        minutes=_number("condition.minutes", "Minutes", getattr(condition, "minutes", None)),
        weekday=_select(
            "condition.weekday",
            "Day",
            getattr(condition, "weekday", "monday"),
            [(day, day.capitalize()) for day in get_args(Weekday)],
        ),
        hour=_number("condition.hour", "Hour, UTC", getattr(condition, "hour", 7)),
        consecutive=_number("consecutive", "Sessions in a row that fire it", rule.consecutive),
        clear_sessions=_number(
            "clear_sessions", "Good sessions in a row that end it", rule.clear_sessions
        ),
        jobs=_line(
            "jobs",
            "lines",
            "Job names; * and ? stand for any letters",
            rule.selector,
            "all; or llama-*, vision-?",
        ),
        labels=_line(
            "labels", "pairs", "Labels", rule.selector, "all; or owner=ann, project=vision"
        ),
        except_labels=_line(
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
        escalates_at=_number(
            "escalation.at_least", "Becomes critical from", plan.at_least, scale, "never"
        ),
        escalates_from=_number(
            "escalation.gpu_hours_per_hour",
            "Or from GPU-hours lost each hour",
            plan.gpu_hours_per_hour,
            example="never",
        ),
        escalates_after=_number(
            "escalation.after_minutes",
            "Or when not acknowledged for, min",
            plan.after_minutes,
            example="never",
        ),
        escalates_to=_checks("escalation.channels", "Further recipients", plan.channels, listed),
    )


def _number(
    path: str, label: str, value: float | None, scale: float = 1.0, example: str = ""
) -> Field:
    # Twelve digits: 5, where 0.05 × 100 is 5.000000000000001.
    written = "" if value is None else f"{scale * value:.12g}"
    return Field(_id(path), path, label, "number", value=written, example=example)


def _select(path: str, label: str, value: str, words: Iterable[tuple[str, str]]) -> Field:
    options = [Option(value, word) for value, word in words]
    return Field(_id(path), path, label, "select", value=value, options=options)


def _checks(
    path: str, label: str, chosen: Sequence[str | UUID], options: Sequence[Option]
) -> Field:
    return Field(_id(path), path, label, "checks", chosen=tuple(map(str, chosen)), options=options)


def _line(name: str, control: Control, label: str, selector: Selector, example: str) -> Field:
    """Return a field of the selector in one line."""
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
