"""Which start of the job this is: the launcher's name for the run, and how often it restarted."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# From the outermost launcher to the innermost: the run's name, and the number of its restarts.
_LAUNCHERS: Final = (
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)
_OWN: Final = ("PACELINE_RUN_ID", "PACELINE_RESTART")
# What torchrun says where the run has no name.
_NO_NAMES: Final = frozenset({"", "none"})


@dataclass(frozen=True)
class Run:
    """One start of a job, as its launcher tells it; the server counts these as attempts.

    Parameters
    ----------
    run_id : str
        Alike on all ranks.
    restart : int
        Restarts within the run, from 0.
    """

    run_id: str
    restart: int = 0

    def document(self) -> dict[str, str | int]:
        """Return what the server is told."""
        return {"run_id": self.run_id, "restart": self.restart}


def run_from_environment(environment: Mapping[str, str] = os.environ) -> Run:
    """Return the run that ``PACELINE_RUN_ID``, Slurm or torchrun tell.

    Where none of them counts restarts, every call is a run of its own, which the ranks have to
    agree on.
    """
    launchers = (_OWN,) if environment.get(_OWN[0]) else _LAUNCHERS
    names: list[str] = []
    counts: list[str] = []
    for name_key, restart_key in launchers:
        name = environment.get(name_key, "")
        count = environment.get(restart_key, "")
        if name.lower() not in _NO_NAMES:
            names.append(name)
        if count.isdecimal():
            counts.append(count)
    if not counts or not names:
        names.append(uuid.uuid4().hex[:12])
    # A restart of the outer launcher starts the inner one's count anew.
    return Run("/".join([*names, *counts[:-1]]), int(counts[-1]) if counts else 0)
