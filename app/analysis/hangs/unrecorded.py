"""Who is waited for where nothing that recorders say leads to a rank: by silence, and by stacks."""

from __future__ import annotations

from collections import Counter
from typing import Final

from app.analysis.hangs.said import (
    REMEDIES,
    Culprit,
    Hang,
    HangKind,
    Link,
    code_words,
    label,
    left_words,
    rank_words,
    sentence_words,
)
from app.analysis.hangs.stacks import Standing
from app.analysis.hangs.state import JobState
from app.analysis.hangs.waits import Waits

# A stack is of one moment, and says what a rank does but not what it waits for; what a host says of
# a process is certain, but not that it is what the others wait for.
_BY_STACKS: Final = 0.6
_BY_PROCESS: Final = 0.8


def by_stacks(job: JobState, stands: Standing, unknown: tuple[str, ...]) -> Hang:
    """Blame the ranks that are elsewhere than those that wait."""
    line = code_words(stands.line)
    culprits = []
    for rank in stands.others:
        place, stack = job.place(rank), job.ranks[rank].stack
        culprits.append(
            Culprit(
                rank=rank,
                host=place.host,
                gpu=place.gpu,
                kind=HangKind.NEVER_ENTERED,
                operation=line,
                evidence=f"is in {code_words(stack[0])} while the others stand in {line}",
                since_ns=None,
                confidence=_BY_STACKS,
                stack=stack,
            )
        )
    without = sorted(job.ranks.keys() - {*stands.waiting, *stands.others})
    return Hang(
        kind=HangKind.NEVER_ENTERED,
        sentence=sentence_words(culprits, len(stands.waiting)),
        culprits=tuple(culprits),
        waiting=stands.waiting,
        chain=(Link(line, stands.waiting, stands.others, 1),),
        confidence=_BY_STACKS,
        remedy=REMEDIES[HangKind.NEVER_ENTERED],
        unknown=(
            *unknown,
            *([f"There is no stack of {rank_words(without)}."] if without else []),
            "No recorder says what is pending: this is told by the stacks alone.",
        ),
    )


def by_silence(job: JobState, waits: Waits, unknown: tuple[str, ...]) -> Hang:
    """Blame the ranks that say nothing, where nothing that is pending leads to them or to others.

    Recorders other than NCCL's do not say which ranks a group has, and know no transfers.
    """
    waiting = tuple(sorted(rank for rank, one in job.ranks.items() if one.pending or one.stack))
    if waits.operations:
        where = label(job, max(waits.operations, key=lambda one: len(one.waiting)))
    else:
        lines = Counter(one.stack[0] for one in job.ranks.values() if one.stack)
        where = code_words(lines.most_common(1)[0][0]) if lines else "an unknown place"
    stand = "waits" if len(waiting) == 1 else "wait"
    told = (
        f"and {rank_words(waiting)} {stand} in {where}"
        if waiting
        else "and no rank says where it is"
    )
    culprits = [
        Culprit(
            rank=rank,
            host=job.place(rank).host,
            gpu=job.place(rank).gpu,
            kind=HangKind.SILENT,
            operation=where,
            evidence=f"{left_words(job, rank)}, {told}",
            since_ns=None,
            confidence=_BY_PROCESS if rank in job.processes else _BY_STACKS,
        )
        for rank in sorted(job.silent)
    ]
    return Hang(
        kind=HangKind.SILENT,
        sentence=sentence_words(culprits, len(waiting)),
        culprits=tuple(culprits),
        waiting=waiting,
        chain=(Link(where, waiting, tuple(sorted(job.silent)), 1),) if waiting else (),
        confidence=min(one.confidence for one in culprits),
        remedy=REMEDIES[HangKind.SILENT],
        unknown=(*unknown, "Nothing says that the others wait for it but its silence."),
    )
