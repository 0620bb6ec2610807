"""Kind of cause: names, sign, and functions that find, explain, fix and rule out the cause."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, TypeVar

from app.analysis.diagnosis.finding import Cause, Finding, GapLoss
from app.analysis.diagnosis.locations import Hosts, JobFacts
from app.analysis.diagnosis.session_view import Signs
from app.analysis.trace.model import PARAMS_ALL_GATHER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remedy:
    """The change that removes a cause, in words."""

    action: str  # a stable code, as in reports
    title: str  # what to do
    detail: str  # what was replayed to predict the gain, and how to go about it


class Phase(IntEnum):
    """Phase of the search; time explained by causes of earlier phases is subtracted first."""

    # slowness of all workers at once, which would otherwise look like slow spells of each worker
    ALL_WORKERS = auto()
    # waits among the ranks of a worker, which lengthen the worker's computations
    WITHIN_WORKERS = auto()
    # causes whose sign is a special form of a general cause's sign
    SPECIAL = auto()
    GENERAL = auto()


class Plan(Enum):
    """The way in which mitigation plans a fix that does more than remove the cause."""

    REPLACE_WORKERS = auto()
    DIVIDE_LAYERS = auto()
    COLLECT_TOGETHER = auto()
    BALANCE_MICROBATCHES = auto()
    SHED_WORK = auto()


@dataclass(frozen=True, slots=True)
class CauseKind:
    """A kind of cause that the diagnosis finds."""

    name: str  # as in reports and rules
    title: str  # name for people: on pages, in messages and in the documentation
    word: str  # a single word for narrow columns
    sign: str  # how the cause shows in the data, a sentence
    # Whether the hosts of the named workers are at fault, so that other hosts would be faster.
    # Otherwise the job itself is slow on any hosts because of its data, code or settings.
    blames_machine: bool
    # Returns the reason why a session cannot show the cause; None if it can, or if the job cannot
    # have the cause.
    cannot_judge: Callable[[Signs], str | None]
    # Returns the clause that follows "because" in the verdict.
    because: Callable[[Cause, JobFacts], str]
    # Returns the finding with evidence and the changes that remove the cause; None if the sign is
    # absent.
    find: Callable[[Signs], Finding | None]
    # Returns the time that the cause takes between steps; None if it takes no time there.
    between: Callable[[Signs], GapLoss | None] | None = None
    # Returns whether the cause may also slow the ideal steps, so that little time seems lost.
    slows_ideal: Callable[[Signs], bool] | None = None
    remedy: Callable[[Cause, Hosts], Remedy] | None = None
    plan: Plan | None = None  # how its fix is planned, with a remedy or instead of one
    phase: Phase = Phase.GENERAL
    planned_around: bool = False  # whether another division of the layers compensates for it
    of_transfers: bool = False  # whether it lengthens transfers, which no other cause does
    everywhere: bool = False  # whether it affects all DP ranks alike, and names no place
    # Whether the cause must recur to be certain: in a single step its sign may be an accident, or a
    # sign of another cause that comes and goes.
    recurs: bool = False
    # Whether the cause's sign is a change from step to step, which a single step cannot show.
    over_steps: bool = False
    # Whether the cause's sign is the ranks' own computing time, which is valid however much the
    # replay differs from the recording.
    needs_no_replay: bool = False
    # Whether the cause needs a network or a device for each rank; ranks that share the processors
    # of one host have neither.
    needs_own_devices: bool = False
    # Whether only the collectives of a group's ranks show the cause: tensor-, context- or expert-
    # parallel ones, which sessions usually leave out.
    of_rank_groups: bool = False
    # Whether a new installation has an alert rule for this cause only.
    alerts_alone: bool = False


SHARED_PROCESSORS: Final = "the ranks share the processors of one host"


def always(value: T) -> Callable[[Cause, Hosts], T]:
    """Return a function that returns the same clause or remedy for every cause of its kind."""
    return lambda _cause, _hosts: value


def needs_comparable_stages(signs: Signs) -> str | None:
    """Return the reason why stages cannot be compared with one another; None if they can."""
    if signs.observation.comparable:
        return None
    return (
        "stages do not all compute the same microbatches and model chunks, forward and backward, "
        "so their computations cannot be compared"
    )


def needs_peers(signs: Signs) -> str | None:
    """Return the reason why workers cannot be compared with their peers; None if they can."""
    if not signs.observation.comparable_within_stages:
        return (
            "stages do not compute as often forward as backward, so their workers cannot be "
            "compared"
        )
    layout = signs.observation.layout
    if layout.dp == 1 and (layout.pp == 1 or not signs.observation.comparable):
        return "with one DP rank a worker has no peers to compare it with"
    return None


def needs_step_begins(signs: Signs) -> str | None:
    """Return the reason why the begin of steps is unknown; None if it is known."""
    if PARAMS_ALL_GATHER in signs.observation.op_types or needs_step_gaps(signs) is None:
        return None
    return (
        "nothing is recorded before a step's first forward, so waiting for its batch cannot be "
        "told from the time between steps"
    )


def needs_step_gaps(signs: Signs) -> str | None:
    """Return the reason why the usual gap between steps is unknown; None if it is known."""
    gaps = signs.step_gaps
    if gaps is not None and (gaps.has_usual or len(gaps.host_operations)):
        return None
    return "too few recorded steps follow one another by clocks to tell what passes between them"


def needs_tensor_ranks(signs: Signs) -> str | None:
    """Return the reason why tensor-parallel ranks cannot be distinguished; None if they can."""
    if signs.observation.trace.meta.sizes.tp == 1 or signs.has_tensor_ranks:
        return None
    return "no tensor-parallel operations recorded"
