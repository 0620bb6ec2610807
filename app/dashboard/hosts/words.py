"""States and words of hosts that their pages share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from app.dashboard.ui.format import EN_DASH, plural
from app.dashboard.ui.parts import StateLabel
from app.services.hosts.outcomes import ENOUGH, Outcome

if TYPE_CHECKING:
    from app.services.hosts.one import HostSession
    from app.services.hosts.outcomes import Judged

FIRING: Final = StateLabel("firing", "Firing", 0)
SLOW_NOW: Final = StateLabel("slow", "Slow", 1)
IN_SERVICE: Final = StateLabel("ok", "In service", 2, quiet=True)

# Consecutive GPUs are said as a range from so many on.
_RANGE_FROM: Final = 3


def state_of(*, firing: bool, slow: bool) -> StateLabel:
    """Return how a host stands."""
    if firing:
        return FIRING
    return SLOW_NOW if slow else IN_SERVICE


def gpu_words(gpus: Sequence[str]) -> str:
    """Return GPUs in few words.

    Examples
    --------
    >>> gpu_words(["0", "1", "2", "3", "5"])
    '0–3, 5'
    >>> gpu_words(["GPU-a1b2"])
    'GPU-a1b2'
    """
    parts: list[str] = []
    run: list[str] = []
    for gpu in (*gpus, None):
        follows = (run and gpu is not None and gpu.isdecimal() and run[-1].isdecimal()) and int(
            gpu
        ) == int(run[-1]) + 1
        if not follows and run:
            many = len(run) >= _RANGE_FROM
            parts += [f"{run[0]}{EN_DASH}{run[-1]}"] if many else run
            run = []
        if gpu is not None:
            run.append(gpu)
    return ", ".join(parts)


def named_gpus(gpus: Sequence[str]) -> str:
    """Return GPUs as a sentence names them: those that are numbers as such.

    Examples
    --------
    >>> named_gpus(["0", "1"]), named_gpus(["5"]), named_gpus(["GPU 0"])
    ('GPUs 0, 1', 'GPU 5', 'GPU 0')
    """
    if not all(gpu.isdecimal() for gpu in gpus):
        return gpu_words(gpus)
    return f"GPU{'s' if len(gpus) > 1 else ''} {gpu_words(gpus)}"


def gpu_key(gpu: Mapping[str, Any]) -> str:
    """Return what a GPU stays, also where it gets another number: its UUID, where it is known."""
    return str(gpu.get("uuid") or gpu["gpu"])


def names_of_gpus(sessions: Sequence[HostSession]) -> dict[str, str]:
    """Return the name of each GPU in the latest session that has it, by its key."""
    return {gpu_key(gpu): gpu["gpu"] for one in reversed(sessions) for gpu in one.gpus}


def outcome_words(judged: Judged) -> str:
    """Return what came of a repair in a word or two."""
    if judged.outcome is Outcome.OPEN:
        left = ENOUGH - judged.sessions_after
        return f"open: {plural(left, 'more session')} needed"
    return judged.outcome.value
