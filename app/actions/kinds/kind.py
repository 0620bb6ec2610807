"""The interface of a kind of action, and a pure function of the limits of actions.

Hard limits, such as a name that is not the name of one known node, apply to all actions. The other
limits apply to automatic actions; a user who has seen the evidence may override them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum, nonmember
from typing import Any, Final
from uuid import UUID

from pydantic import TypeAdapter

from app.incidents.held_machines import is_one_node
from app.platform.outbound import DeliveryError, Outbound, ReceiverAnswer


@dataclass(frozen=True, slots=True)
class Order:
    """An order to act on one machine."""

    id: UUID  # id of the action, the same in every attempt
    at: datetime  # when the action, or its release, was ordered
    node: str
    gpus: tuple[str, ...]  # GPUs at fault: UUIDs if known, else their names on the host
    cause: str
    cause_title: str
    confidence: float | None
    sessions: int  # number of sessions that blame the machine
    lost_each_hour: float | None  # GPU-hours that the job loses each hour
    job: str
    incident: UUID
    evidence_url: str  # absolute address of the evidence
    source_url: str  # absolute address of the project's pages
    confirmed: bool  # whether no limit held it, so that no approval was needed


@dataclass(frozen=True, slots=True)
class HangOrder:
    """An order to report a job that hangs; it has no release."""

    id: UUID  # id of the action, the same in every attempt
    at: datetime  # when the action was ordered
    job: str
    hang: UUID
    began: datetime
    ranks: int
    waiting: int  # number of ranks that wait for other ranks
    confidence: float
    sentence: str
    culprits: str  # ranks with host and GPU
    remedy: str
    incident: UUID
    evidence_url: str  # absolute address of the evidence
    source_url: str  # absolute address of the project's pages


@dataclass(frozen=True, slots=True)
class AttemptTools:
    """The outbound connection and the path of scontrol that an attempt may use."""

    # Connection that refuses forbidden addresses and has one deadline for the attempt
    outbound: Outbound
    scontrol: str | None = None  # path set by the operator; None forbids Slurm


@dataclass(frozen=True, slots=True)
class Placement:
    """A job of the project on a node, according to the scheduler."""

    node: str
    # Identifies the node among those of all policies of the kind: two clusters may have nodes of
    # the same name
    node_id: str
    job: str  # name of the job as in `HostReading.launched_as`


@dataclass(frozen=True, slots=True)
class Scheduler:
    """The scheduler of a kind of action, as the source of where a project's jobs run.

    Senders of sessions choose the host names in them freely, so an action needs this second source.
    """

    # Returns what selects the project's jobs in a configuration, such as accounts or namespaces.
    # The stored placements are deleted when it changes.
    scope: Callable[[Any], Sequence[str]]
    # Returns where the selected jobs run now, or raises `DeliveryError`.
    placements: Callable[[Any, AttemptTools], Sequence[Placement]]


# Maximum of placements that one inventory of a scheduler returns.
MAX_PLACEMENTS: Final = 20_000


def too_many_placements() -> DeliveryError:
    """Return the error for a scheduler with more than `MAX_PLACEMENTS`."""
    return DeliveryError(
        "scheduler.too_large",
        f"The scheduler has more than {MAX_PLACEMENTS} running jobs and nodes of this project.",
    )


@dataclass(frozen=True, slots=True)
class ActionKind:
    """A kind of action.

    `act` and `release` return the receiver's answer or raise `DeliveryError`. Both are idempotent:
    after temporary failures they are repeated with the same order.
    """

    name: str
    title: str  # name that users see
    # Type adapter of a frozen dataclass; forms show the descriptions and examples of its fields.
    config: TypeAdapter[Any]
    secrets: frozenset[str]  # names of secret fields, which no page shows again
    # Returns the equivalent command in one line, for a configuration and an order.
    describe: Callable[[Any, Order], str]
    act: Callable[[Any, Order, AttemptTools], ReceiverAnswer]
    release: Callable[[Any, Order, AttemptTools], ReceiverAnswer]
    # Names of public fields whose change keeps the stored secrets. A change of any other public
    # field, and of an address that is itself secret, has to contain all secrets again.
    keep_secrets: frozenset[str] = frozenset()
    # Whether the operator must set the path of scontrol, because the action has the rights of the
    # server's user.
    needs_scontrol: bool = False
    # Reports a job that hangs; None for kinds of actions that act on machines only.
    report_hang: Callable[[Any, HangOrder, AttemptTools], ReceiverAnswer] | None = None
    # The scheduler that acts; None if the receiver of the action decides what is done.
    scheduler: Scheduler | None = None


MIN_CONFIDENCE: Final = 0.95
# Minimum number of sessions that blame the machine, all of them confirmed by the scheduler.
MIN_SESSIONS: Final = 2
# Minimum time between actions on two machines.
TIME_BETWEEN_MACHINES: Final = timedelta(hours=1)
# Maximum share of the known nodes that may be out of service at a time; one node always may.
MAX_SHARE: Final = 0.02
# Time after a user put a machine back into service during which no automatic action takes it out
# again.
PUT_BACK_RESPECTED_FOR: Final = timedelta(days=1)
# Maximum age of the latest session that blames a machine, and of the scheduler's last answer.
MAX_DATA_AGE: Final = timedelta(hours=1)


class Limit(StrEnum):
    """A reason that forbids an action."""

    NOT_ONE_NODE = "action.not_one_node"
    GUESSED = "action.guessed_node"
    UNKNOWN_NODE = "action.unknown_node"
    OTHER_PROJECT = "action.other_project"
    STOPPED = "action.stopped"
    UNCONFIRMED = "action.unconfirmed_job"
    PULSE_ALONE = "action.pulse_alone"
    CONFIDENCE = "action.low_confidence"
    SEEN_ONCE = "action.seen_once"
    LATE_DATA = "action.late_data"
    IN_HAND = "action.in_hand"
    PUT_BACK = "action.put_back"
    ONE_AN_HOUR = "action.one_an_hour"
    TOO_MANY_OUT = "action.too_many_out"
    TOO_MANY_EVERYWHERE = "action.too_many_everywhere"

    # Limits that no user can override.
    HARD = nonmember((NOT_ONE_NODE, GUESSED, UNKNOWN_NODE, OTHER_PROJECT, STOPPED))


SENTENCES: Final[Mapping[Limit, str]] = {
    Limit.NOT_ONE_NODE: "The host's name is not that of one node.",
    Limit.GUESSED: "The host's name is a guess: it may be that of a container.",
    Limit.UNKNOWN_NODE: (
        "No job of this project ran on a node of this name. For Slurm and Kubernetes the scheduler "
        "decides: name the Slurm accounts or Kubernetes namespaces of this project in the policy."
    ),
    Limit.OTHER_PROJECT: "The scheduler ran a job of another project on the node last.",
    Limit.STOPPED: "Actions are stopped.",
    Limit.UNCONFIRMED: (
        f"The scheduler confirms fewer than {MIN_SESSIONS} sessions that blame the machine: their "
        "metadata need the Slurm job or the pod, and the project a policy for Slurm or Kubernetes, "
        "at least in a dry run."
    ),
    Limit.PULSE_ALONE: "No session confirms it: only the pulse noticed it.",
    Limit.CONFIDENCE: f"The confidence in the cause is below {MIN_CONFIDENCE:g}.",
    Limit.SEEN_ONCE: f"Fewer than {MIN_SESSIONS} sessions blame the machine.",
    Limit.LATE_DATA: (
        "The latest session that blames the machine is over an hour old, sessions wait for their "
        "analysis, or the scheduler has not answered for over an hour."
    ),
    Limit.IN_HAND: "A person has acknowledged or silenced the incident.",
    Limit.PUT_BACK: "A person put the machine back within the last day.",
    Limit.ONE_AN_HOUR: "Another machine was taken out within the last hour.",
    Limit.TOO_MANY_OUT: (
        f"More than {MAX_SHARE * 100:.0f} % of the nodes that the scheduler gave this project on "
        "more than one day would be out."
    ),
    Limit.TOO_MANY_EVERYWHERE: (
        f"With those of other projects more than {MAX_SHARE:.0%} of all such nodes would be out."
    ),
}


def require_one_node(name: str) -> None:
    """Refuse a name that schedulers may read as several nodes.

    Raises
    ------
    DeliveryError
        ``action.not_one_node``.
    """
    if not is_one_node(name):
        raise DeliveryError(Limit.NOT_ONE_NODE.value, SENTENCES[Limit.NOT_ONE_NODE], permanent=True)


@dataclass(frozen=True, slots=True)
class Case:
    """The evidence against one machine."""

    node: str
    guessed: bool
    # Whether a job of the project ran on a node of this name: according to the scheduler of the
    # kind of action, or to sessions for a kind without scheduler
    known: bool
    in_hand: bool  # whether a user has acknowledged or silenced the incident
    # Time at which the latest session that blames the machine was received; None if only the pulse
    # blames it
    measured_at: datetime | None
    confidence: float | None
    sessions: int  # number of sessions that blame it since its last repair or return to service
    put_back_at: datetime | None  # when a user last put it back into service
    # Number of these sessions whose job the scheduler saw on the node; 0 as well if the confidence
    # is that of another session
    confirmed: int = 0
    is_other_project: bool = False  # whether a scheduler ran another project's job on it last
    # Time of the last answer of the scheduler that knows the node; None if none knows it
    scheduler_at: datetime | None = None


@dataclass(frozen=True, slots=True)
class Fleet:
    """The machines of a project, and the actions on them."""

    now: datetime
    nodes: int  # number of nodes that schedulers saw for the project on more than one day
    out: frozenset[str]  # nodes that actions have taken, or are taking, out of service
    # By machine, the time of the latest action on it
    taken_at: Mapping[str, datetime]
    stopped: bool  # whether the kill switch is on
    behind: bool  # whether sessions wait for their analysis
    # Counts over all projects: nodes out of service, and nodes seen on more than one day; a node
    # of two projects counts once
    out_everywhere: int = 0
    nodes_everywhere: int = 0


def limits_of(case: Case, fleet: Fleet) -> tuple[Limit, ...]:
    """Return the limits that forbid an automatic action on a machine."""
    return tuple(limit for limit, holds in _limits_checked(case, fleet) if holds)


def hard_limits(limits: Iterable[Limit]) -> tuple[Limit, ...]:
    """Return the limits that forbid an action and that no user can override."""
    return tuple(limit for limit in limits if limit in Limit.HARD)


def may_be_out(nodes: int) -> int:
    """Return the maximum number of `nodes` that may be out of service at a time.

    Examples
    --------
    >>> may_be_out(0), may_be_out(99), may_be_out(250)
    (1, 1, 5)
    """
    return max(1, int(nodes * MAX_SHARE))


def _limits_checked(case: Case, fleet: Fleet) -> Iterable[tuple[Limit, bool]]:
    measured = case.measured_at
    yield Limit.STOPPED, fleet.stopped
    yield Limit.NOT_ONE_NODE, not is_one_node(case.node)
    yield Limit.GUESSED, case.guessed
    yield Limit.UNKNOWN_NODE, not case.known
    yield Limit.OTHER_PROJECT, case.is_other_project
    yield Limit.UNCONFIRMED, case.confirmed < max(1, min(case.sessions, MIN_SESSIONS))
    yield Limit.PULSE_ALONE, measured is None
    # This comparison is false if the confidence is NaN
    sure = case.confidence is not None and case.confidence >= MIN_CONFIDENCE
    yield Limit.CONFIDENCE, not sure
    yield Limit.SEEN_ONCE, case.sessions < MIN_SESSIONS
    late = any(
        at is not None and fleet.now - at > MAX_DATA_AGE for at in (measured, case.scheduler_at)
    )
    yield Limit.LATE_DATA, late or fleet.behind
    yield Limit.IN_HAND, case.in_hand
    back = case.put_back_at
    yield Limit.PUT_BACK, back is not None and fleet.now - back < PUT_BACK_RESPECTED_FOR
    others = (at for node, at in fleet.taken_at.items() if node != case.node)
    yield Limit.ONE_AN_HOUR, any(fleet.now - at < TIME_BETWEEN_MACHINES for at in others)
    too_many = len(fleet.out | {case.node}) > may_be_out(fleet.nodes)
    yield Limit.TOO_MANY_OUT, too_many
    # Reported once only: in an installation with one project it equals the limit on the project.
    everywhere = fleet.out_everywhere + (case.node not in fleet.out)
    beyond = everywhere > may_be_out(fleet.nodes_everywhere)
    yield Limit.TOO_MANY_EVERYWHERE, beyond and not too_many
