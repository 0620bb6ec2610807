"""Alert rules as values: job selector, condition, severity and recipients; the default rules."""

from __future__ import annotations

import fnmatch
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Annotated, Final, Literal, get_args
from uuid import UUID

from pydantic import Field, TypeAdapter

from app.analysis.diagnosis.causes.registry import KINDS
from app.analysis.pulse.notices import NoticeKind
from app.analysis.replay.fidelity import DISCREPANCY_LIMIT
from app.analysis.replay.metrics import STRAGGLING

# Importance of a job that has no label of that name.
DEFAULT_IMPORTANCE: Final = "normal"

Importance = Literal["low", "normal", "high"]
Severity = Literal["info", "warning", "critical"]
Audience = Literal["on_call", "owner"]
# Kinds of notices for which a session is requested; the other kinds are hangs.
SlowKind = Literal[
    NoticeKind.SLOW_RANK,
    NoticeKind.SLOW_JOB,
    NoticeKind.SPELLS,
    NoticeKind.DRIFT,
    NoticeKind.IMBALANCE,
]

ShortText = Annotated[str, Field(min_length=1, max_length=200)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False, le=1e9)]
Share = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=1, le=20)]


@dataclass(frozen=True, slots=True)
class Selector:
    """Selected jobs; an empty field selects all jobs."""

    jobs: Annotated[
        tuple[ShortText, ...],
        Field(description="Names; * and ? are wildcards.", examples=["llama-*"]),
    ] = ()
    """Job names with the wildcards ``*`` and ``?``; a job is selected if one of them matches."""
    labels: Annotated[
        Mapping[ShortText, ShortText],
        Field(description="All of them are required.", examples=[{"project": "vision"}]),
    ] = field(default_factory=dict)
    """Labels that the job's metadata must all have; ``project`` and ``owner`` are labels like
    others.
    """
    importance: tuple[Importance, ...] = ()
    """Values of the label ``importance``: low, normal (also of jobs without that label), high."""
    except_labels: Annotated[
        Mapping[ShortText, ShortText],
        Field(description="Not jobs with any of these.", examples=[{"demo": "true"}]),
    ] = field(default_factory=dict)
    """Labels that exclude a job if it has at least one of them."""

    def selects(self, job: str, labels: Mapping[str, str]) -> bool:
        """Return whether the selector selects a job."""
        importance = labels.get("importance", DEFAULT_IMPORTANCE)
        return (
            (not self.jobs or any(fnmatch.fnmatchcase(job, name) for name in self.jobs))
            and all(labels.get(name) == value for name, value in self.labels.items())
            and not any(labels.get(name) == value for name, value in self.except_labels.items())
            and (not self.importance or importance in self.importance)
        )


@dataclass(frozen=True, slots=True)
class Threshold:
    """A threshold for a number of a session, such as its slowdown."""

    kind: Literal[
        "headline",
        "slowdown",
        "waste",
        "gpu_hours_lost",
        "discrepancy",
        "regression",
        "budget.between_steps",
        "budget.slow_together",
    ]
    """``headline`` (slowdown against the job without its causes), ``slowdown`` (the published S),
    ``waste`` (share, of S), ``gpu_hours_lost`` (in the session, of S), ``discrepancy`` (share),
    ``regression`` (share by which a step takes longer than the job's own baseline),
    ``budget.between_steps`` (share of the time that is lost between steps) or
    ``budget.slow_together`` (share that is lost in steps in which all workers compute slower)."""
    at_least: Positive
    """The condition holds from this value on."""
    clears_below: Positive
    """The condition ends only below this value, so that a value near the threshold does not flap.
    """

    def __post_init__(self) -> None:
        if self.clears_below > self.at_least:
            raise ValueError("clears_below must not be above at_least")


@dataclass(frozen=True, slots=True)
class CauseFound:
    """A cause that the diagnosis found with enough confidence; no confidence never suffices."""

    confidence: Share
    """The condition holds from this confidence on."""
    clears_below: Share
    causes: tuple[ShortText, ...] = ()
    """Names of the causes; empty: any cause."""
    kind: Literal["cause"] = "cause"

    def __post_init__(self) -> None:
        if self.clears_below > self.confidence:
            raise ValueError("clears_below must not be above confidence")


@dataclass(frozen=True, slots=True)
class NoData:
    """No session was received for some time."""

    minutes: Positive | None = None
    """Minutes without a session."""
    intervals: Positive | None = None
    """Multiple of the job's typical time between sessions; if both limits are given, the longer
    time counts.
    """
    kind: Literal["no_data"] = "no_data"

    def __post_init__(self) -> None:
        if self.minutes is None and self.intervals is None:
            raise ValueError("minutes or intervals must be given")


@dataclass(frozen=True, slots=True)
class Hanging:
    """The job hangs, according to hang files of its ranks or to its pulse."""

    confidence: Share = 0.5
    """Confidence of a verdict on hang files from which on the condition holds."""
    kind: Literal["hang"] = "hang"


@dataclass(frozen=True, slots=True)
class Noticed:
    """The pulse shows slow ranks or a slow job; the incident fires once a session confirms it."""

    kinds: tuple[SlowKind, ...] = ()
    """Kinds of notices; empty: any kind."""
    at_once: bool = False
    """Whether the incident fires with the notice, without waiting for a session."""
    kind: Literal["notice"] = "notice"


Weekday = Literal["monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday"]


@dataclass(frozen=True, slots=True)
class Weekly:
    """No condition on jobs: a weekly summary of what stragglers cost the project."""

    weekday: Weekday = "monday"
    hour: Annotated[int, Field(ge=0, le=23, description="In UTC.")] = 7
    """Hour of the day in UTC."""
    kind: Literal["weekly"] = "weekly"

    def due(self, now: datetime) -> datetime:
        """Return the latest time at which a summary was due.

        Examples
        --------
        >>> from datetime import UTC
        >>> Weekly("monday", 7).due(datetime(2026, 11, 24, tzinfo=UTC)).isoformat()
        '2026-11-23T07:00:00+00:00'
        """
        now = now.astimezone(UTC)
        at = now.replace(hour=self.hour, minute=0, second=0, microsecond=0)
        at -= timedelta(days=(now.weekday() - get_args(Weekday).index(self.weekday)) % 7)
        return at if at <= now else at - timedelta(days=7)


Condition = Annotated[
    Threshold | CauseFound | NoData | Hanging | Noticed | Weekly, Field(discriminator="kind")
]


@dataclass(frozen=True, slots=True)
class Escalation:
    """When an incident becomes critical and notifies more recipients, at most once an incident."""

    at_least: Positive | None = None
    """The incident becomes critical from this value of the rule's own number on."""
    gpu_hours_per_hour: Positive | None = None
    """The incident becomes critical once the job loses this number of GPU-hours in each hour."""
    after_minutes: Positive | None = None
    """The incident becomes critical after this number of minutes without an acknowledgement."""
    channels: tuple[UUID, ...] = ()
    """Channels that are notified in addition once the incident is critical."""


@dataclass(frozen=True, slots=True)
class Rule:
    """An alert rule."""

    id: UUID
    name: ShortText
    condition: Condition
    selector: Selector = Selector()
    enabled: bool = True
    consecutive: Count = 2
    """Number of sessions in a row for which the condition must hold before the incident fires."""
    clear_sessions: Count = 2
    """Number of sessions in a row without the condition after which the incident ends."""
    severity: Severity = "warning"
    audience: Audience = "on_call"
    """Whose channels are notified: those on call, or those of the job's owner."""
    channels: tuple[UUID, ...] = ()
    """Channels that are notified instead of those of the audience; empty: those of the audience."""
    escalation: Escalation | None = None

    @property
    def evaluated(self) -> bool:
        """Return whether the rule has a condition on jobs."""
        return not isinstance(self.condition, Weekly)


RULE: Final = TypeAdapter(Rule)

_SEVERITIES: Final[tuple[Severity, ...]] = ("info", "warning", "critical")


def highest(severities: list[Severity]) -> Severity:
    """Return the highest of the severities; ``info`` without any."""
    return max(severities, key=_SEVERITIES.index, default="info")


# Labels of the sessions that the demo sends.
DEMO_LABELS: Final[Mapping[str, str]] = {"demo": "true"}

DEFAULT_RULES: Final = (
    Rule(
        id=UUID("5a0c1ea1-0000-4000-8000-000000000001"),
        name="Slow job",
        condition=Threshold("headline", at_least=STRAGGLING, clears_below=1.05),
        selector=Selector(importance=("normal", "high")),
        # A small lost share of a large job may cost more GPU-hours than half of a small job.
        escalation=Escalation(at_least=1.5, gpu_hours_per_hour=100.0),
    ),
    Rule(
        id=UUID("5a0c1ea1-0000-4000-8000-000000000002"),
        name="Regression against the job's baseline",
        condition=Threshold("regression", at_least=0.05, clears_below=0.03),
        selector=Selector(importance=("normal", "high")),
    ),
    Rule(
        id=UUID("5a0c1ea1-0000-4000-8000-000000000003"),
        name="Slow worker, for certain",
        condition=CauseFound(
            confidence=0.9,
            clears_below=0.8,
            causes=tuple(name for name, kind in KINDS.items() if kind.alerts_alone),
        ),
        selector=Selector(importance=("normal", "high")),
        consecutive=1,
    ),
    Rule(
        id=UUID("5a0c1ea1-0000-4000-8000-000000000004"),
        name="No data",
        condition=NoData(minutes=10, intervals=3),
        # The demo's job ends, so its silence is no incident.
        selector=Selector(importance=("normal", "high"), except_labels=DEMO_LABELS),
        consecutive=1,
        clear_sessions=1,
    ),
    Rule(
        id=UUID("5a0c1ea1-0000-4000-8000-000000000005"),
        name="Low trace quality",
        condition=Threshold(
            "discrepancy", at_least=DISCREPANCY_LIMIT, clears_below=DISCREPANCY_LIMIT
        ),
        severity="info",
        audience="owner",
    ),
)

# Added to a project with its first hang, because servers of older versions cannot read this rule.
HANG_RULE: Final = Rule(
    id=UUID("5a0c1ea1-0000-4000-8000-000000000006"),
    name="Hang",
    condition=Hanging(),
    selector=Selector(importance=("normal", "high")),
    consecutive=1,
    clear_sessions=1,
    severity="critical",
)

# Added to a project with its first notice, because servers of older versions cannot read this rule.
NOTICE_RULE: Final = Rule(
    id=UUID("5a0c1ea1-0000-4000-8000-000000000007"),
    name="Noticed in the pulse",
    condition=Noticed(),
    selector=Selector(importance=("normal", "high")),
    consecutive=1,
    clear_sessions=1,
)
