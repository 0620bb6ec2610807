"""What a kind of cause is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from app.analysis.diagnosis.finding import Cause, Finding
from app.analysis.diagnosis.places import Hosts, JobFacts
from app.analysis.diagnosis.signs import Signs


@dataclass(frozen=True, slots=True)
class Remedy:
    """The change that removes a cause, in words.

    Parameters
    ----------
    action : str
        A code.
    title, detail : str
        What to do, and what was replayed to tell its gain.
    """

    action: str
    title: str
    detail: str


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of cause; one that is no `CauseKind` no trace shows.

    Parameters
    ----------
    name : str
        As in reports and rules.
    title : str
        As people call it: on pages, in messages and in the documentation.
    cannot_judge : callable
        Takes the signs of a session and returns why it cannot show the cause, or None where it can
        or the job cannot have the cause.
    """

    name: str
    title: str
    cannot_judge: Callable[[Signs], str | None]


@dataclass(frozen=True, slots=True)
class CauseKind(Kind):
    """A kind of cause that the diagnosis finds.

    Parameters
    ----------
    word : str
        One word for it, where columns are narrow.
    sign : str
        What it leaves in the data, in a sentence.
    blames_machine : bool
        Whether the hosts of the workers that it names are at fault, so that other ones would do
        better. Else it is the job's own wherever it runs: its data, its code, its settings.
    because : callable
        Takes a cause and facts of its job, and returns a clause that goes on after "because".
    find : callable
        Takes the signs of a session and returns the finding, with its evidence and the session
        without the cause, or None where the sign is not there.
    remedy : callable or None
        Takes a cause and the hosts of its job. None where the change goes beyond the session
        without the cause, and mitigation replays it.
    within_worker : bool
        Whether it lies between the tensor-parallel ranks of a worker. What it costs is taken off
        the worker's computations before workers and stages are compared.
    goes_first : bool
        Whether its sign is a special form of another cause's. It is looked for before those, and
        the computing and the late launches that it explains are taken off.
    planned_around : bool
        Whether another division of the layers makes up for it.
    """

    word: str
    sign: str
    blames_machine: bool
    because: Callable[[Cause, JobFacts], str]
    find: Callable[[Signs], Finding | None]
    remedy: Callable[[Cause, Hosts], Remedy] | None = None
    within_worker: bool = False
    goes_first: bool = False
    planned_around: bool = False


def needs_like_stages(signs: Signs) -> str | None:
    """Return why stages cannot be held against one another; None where they can."""
    if signs.observation.comparable:
        return None
    return (
        "stages do not all compute the same microbatches and model chunks, forward and backward, "
        "so their computations cannot be compared"
    )


def needs_tensor_ranks(signs: Signs) -> str | None:
    """Return why the ranks of tensor-parallel groups cannot be told apart; None where they can."""
    if signs.observation.trace.meta.sizes.tp == 1 or signs.has_tensor_ranks:
        return None
    return "no tensor-parallel operations recorded"
