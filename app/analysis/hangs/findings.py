"""Kinds of hangs, culprits, and the sentences of a hang's verdict."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Final

from app.analysis.hangs.state import Frame, JobState, Place
from app.analysis.hangs.wait_graph import Operation

_NAMED: Final = 4  # ranks in a sentence


class HangKind(StrEnum):
    """Reason why other ranks wait for a rank."""

    NEVER_ENTERED = "never_entered"
    DEVICE_STUCK = "device_stuck"
    SILENT = "silent"
    MISMATCH = "mismatch"
    ALL_ENTERED = "all_entered"
    NOTHING_PENDING = "nothing_pending"


@dataclass(frozen=True, slots=True)
class Culprit:
    """Rank that other ranks wait for, and that itself waits for no rank or for an impossible event.

    Parameters
    ----------
    operation : str
        Operation in which the other ranks wait, or that the culprit does not complete.
    evidence : str
        Predicate whose subject is the rank, for a sentence.
    stack : tuple of Frame
        Stack of the rank's training thread, the innermost frame first; empty if unknown.
    """

    rank: int
    host: str | None
    gpu: str | None
    kind: HangKind
    operation: str
    evidence: str
    since_ns: int | None
    confidence: float
    stack: tuple[Frame, ...] = ()

    @property
    def place(self) -> str:
        """Return the words for the culprit's host and GPU; empty if unknown."""
        return Place(self.host, self.gpu).words


@dataclass(frozen=True, slots=True)
class Link:
    """A link of the chain: an operation, the ranks waiting in it, and the ranks it waits for.

    Parameters
    ----------
    distance : int
        Operations between the waiting ranks and a culprit, this one included.
    """

    operation: str
    waiting: tuple[int, ...]
    waits_for: tuple[int, ...]
    distance: int


@dataclass(frozen=True, slots=True)
class Hang:
    """The verdict on a hang.

    Parameters
    ----------
    kind : HangKind
        The culprits' kind, or without culprits the state of the job.
    waiting : tuple of int
        Ranks that wait for the culprits, directly or indirectly; if there are none, all ranks with
        a pending operation.
    chain : tuple of Link
        The links nearest to the culprits first.
    confidence : float
        0 to 1; 0 if no rank is blamed.
    unknown : tuple of str
        Sentences about what is unknown.
    """

    kind: HangKind
    sentence: str
    culprits: tuple[Culprit, ...]
    waiting: tuple[int, ...]
    chain: tuple[Link, ...]
    confidence: float
    remedy: str
    unknown: tuple[str, ...]


REMEDIES: Final = {
    HangKind.NEVER_ENTERED: (
        "Read what the rank's processor does (py-spy dump --pid PID on its host); where it holds "
        "on to a lock or a file, mend that, else restart the job without its host."
    ),
    HangKind.DEVICE_STUCK: (
        "Look for errors of the GPU on its host (dmesg, nvidia-smi -q), cordon the host, and "
        "restart the job without it."
    ),
    HangKind.SILENT: (
        "Look whether its process and its host are alive; restart the job without the host where "
        "they are not."
    ),
    HangKind.MISMATCH: (
        "The ranks' programs call different collectives, or the same with different tensors: "
        "compare the code paths that lead to the operation named here, such as a collective under "
        "`if rank == 0`; no machine is to blame."
    ),
    HangKind.ALL_ENTERED: (
        "Compare the stacks of the ranks (py-spy dump), and look whether their GPUs compute "
        "(nvidia-smi), before you look at the network between the hosts of the group; no rank is "
        "to blame."
    ),
    HangKind.NOTHING_PENDING: "No rank waits for another one: look at what all of them do.",
}
# For ALL_ENTERED, if the devices of all ranks run the operation.
ALL_STARTED: Final = (
    "The devices of all ranks have started the operation: look at the network between the hosts of "
    "the group (links, switches, NCCL_DEBUG=INFO); no rank is to blame."
)
# For MISMATCH, if as many ranks call the operation as do not.
BOTH_SIDES: Final = (
    "Half of the ranks call the operation and the other half does not: read the stacks of both "
    "sides (py-spy dump). Either the call stands under a condition that not all ranks meet, or the "
    "other half is late."
)
# For SILENT, if most ranks left no file.
FEW_FILES: Final = (
    "Most ranks left no file: collect the files of all ranks, or the output of ncclras -f json, "
    "before you blame one of them."
)


def label(job: JobState, operation: Operation) -> str:
    """Return the name of an operation: ``all_reduce 7 of dp (1)``."""
    first = operation.first
    return f"{first.name or 'operation'} {first.number} of {job.groups[first.group].called}"


def code_words(frame: Frame) -> str:
    """Return the words for a line of code: ``forward (train.py:7)``."""
    return f"{frame.function} ({frame.file}:{frame.line})"


def left_words(job: JobState, rank: int) -> str:
    """Return the predicate about a rank that reports nothing."""
    process = job.processes.get(rank)
    if process is not None:
        return f"says nothing ({process.words})"
    return "says nothing any more" if rank in job.silent else "left nothing"


def sentence_words(culprits: Sequence[Culprit], waiting: int) -> str:
    """Return the verdict's sentence: the number of other waiting ranks, culprits, and evidence."""
    first = culprits[0]
    if not waiting:
        return f"Rank {first.rank} {first.evidence}."
    who = f"{waiting} rank waits" if waiting == 1 else f"{waiting} ranks wait"
    blamed = rank_words([culprit.rank for culprit in culprits])
    return f"{who} for {blamed}. Rank {first.rank} {first.evidence}."


def rank_words(ranks: Sequence[int]) -> str:
    """Return the words for ranks: ``ranks 1, 2, 3, 4 and 9 more``."""
    if len(ranks) == 1:
        return f"rank {ranks[0]}"
    if len(ranks) > _NAMED:
        return f"ranks {', '.join(map(str, ranks[:_NAMED]))} and {len(ranks) - _NAMED} more"
    return f"ranks {', '.join(map(str, ranks[:-1]))} and {ranks[-1]}"
