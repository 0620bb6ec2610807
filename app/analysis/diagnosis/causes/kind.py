"""What a kind of cause is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum, IntEnum, auto
from typing import Final, TypeVar

from app.analysis.diagnosis.finding import Cause, Finding, Standstill
from app.analysis.diagnosis.locations import Hosts, JobFacts
from app.analysis.diagnosis.session_view import Signs
from app.analysis.trace.model import PARAMS_ALL_GATHER

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Remedy:
    """The change that removes a cause, in words."""

    action: str  # a code
    # title, detail: what to do, and what was replayed to tell its gain
    title: str
    detail: str


class Turn(IntEnum):
    """When a cause is looked for; the time that earlier ones explain is taken off before."""

    # it is on all workers alike, and would pass for spells of each
    ALL_WORKERS = auto()
    # it lies between the ranks of a worker, whose computations it lengthens
    WITHIN_WORKERS = auto()
    # its sign is a special form of another cause's
    SPECIAL = auto()
    GENERAL = auto()


class Plan(Enum):
    """How mitigation plans a fix that goes beyond the session without the cause."""

    REPLACE_WORKERS = auto()
    DIVIDE_LAYERS = auto()
    COLLECT_TOGETHER = auto()
    BALANCE_MICROBATCHES = auto()
    SHED_WORK = auto()


@dataclass(frozen=True, slots=True)
class CauseKind:
    """A kind of cause that the diagnosis finds."""

    name: str  # as in reports and rules
    title: str  # as people call it: on pages, in messages and in the documentation
    word: str  # one word for it, where columns are narrow
    sign: str  # what it leaves in the data, in a sentence
    # Whether the hosts of the workers that it names are at fault, so that other ones would do
    # better. Else it is the job's own wherever it runs: its data, its code, its settings.
    blames_machine: bool
    # Takes the signs of a session and returns what it needs that the session lacks, or None where
    # the session can show the cause, or the job cannot have it.
    cannot_judge: Callable[[Signs], str | None]
    # Takes a cause and facts of its job, and returns a clause that goes on after "because".
    because: Callable[[Cause, JobFacts], str]
    # Takes the signs of a session and returns the finding, with its evidence and the session
    # without the cause, or None where the sign is not there.
    find: Callable[[Signs], Finding | None]
    # Takes the signs of a session and returns what the cause takes between steps, if anything.
    between: Callable[[Signs], Standstill | None] | None = None
    # Takes the signs of a session and returns whether the cause may be in the ideal steps too, so
    # that little seems lost.
    hides: Callable[[Signs], bool] | None = None
    remedy: Callable[[Cause, Hosts], Remedy] | None = None  # takes a cause and the hosts of its job
    plan: Plan | None = None  # how its fix is planned; with a remedy, or in its place
    turn: Turn = Turn.GENERAL
    planned_around: bool = False  # whether another division of the layers makes up for it
    of_transfers: bool = False  # whether transfers take longer, which other causes do not explain
    everywhere: bool = False  # whether it is on all DP ranks alike, and names no place
    # Whether a single step shows it too, but not whether it recurs: of one it may be an accident,
    # or another cause that comes and goes.
    recurs: bool = False
    # Whether its sign is what changes from step to step, so that a single one cannot show it.
    over_steps: bool = False
    # Whether its sign is what ranks compute by themselves, so that it holds however far the replay
    # is from the recording.
    holds_anyway: bool = False
    # Whether it needs a network, or devices of the ranks' own: ranks that share the processors of
    # one host have neither.
    needs_own_devices: bool = False
    # Whether the rules of a new installation have one for this cause alone.
    alerts_alone: bool = False


SHARED_PROCESSORS: Final = "the ranks share the processors of one host"


def always(said: T) -> Callable[[Cause, Hosts], T]:
    """Return a clause, or a remedy, that is the same of every cause of its kind."""
    return lambda _cause, _hosts: said


def needs_like_stages(signs: Signs) -> str | None:
    """Return why stages cannot be held against one another; None where they can."""
    if signs.observation.comparable:
        return None
    return (
        "stages do not all compute the same microbatches and model chunks, forward and backward, "
        "so their computations cannot be compared"
    )


def needs_peers(signs: Signs) -> str | None:
    """Return why workers cannot be held against one another; None where they can."""
    if not signs.observation.comparable_within_stages:
        return (
            "stages do not compute as often forward as backward, so their workers cannot be "
            "compared"
        )
    layout = signs.observation.layout
    if layout.dp == 1 and (layout.pp == 1 or not signs.observation.comparable):
        return "with one DP rank a worker has no peers to compare it with"
    return None


def needs_begins(signs: Signs) -> str | None:
    """Return why the begin of steps is not known; None where it is."""
    if PARAMS_ALL_GATHER in signs.observation.op_types or needs_turns(signs) is None:
        return None
    return (
        "nothing is recorded before a step's first forward, so waiting for its batch cannot be "
        "told from the time between steps"
    )


def needs_turns(signs: Signs) -> str | None:
    """Return why it is not known what passes between steps; None where it is."""
    passing = signs.passing
    if passing is not None and (passing.tells or len(passing.host_operations)):
        return None
    return "too few recorded steps follow one another by clocks to tell what passes between them"


def needs_tensor_ranks(signs: Signs) -> str | None:
    """Return why the ranks of tensor-parallel groups cannot be told apart; None where they can."""
    if signs.observation.trace.meta.sizes.tp == 1 or signs.has_tensor_ranks:
        return None
    return "no tensor-parallel operations recorded"
