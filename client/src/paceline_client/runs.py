"""Which start of the job this is: the launcher's name of the run, and its restarts."""

from __future__ import annotations

import os
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

# From the outermost launcher to the innermost: name of the run, number of its restarts.
_LAUNCHERS: Final = (
    ("SLURM_JOB_ID", "SLURM_RESTART_COUNT"),
    ("TORCHELASTIC_RUN_ID", "TORCHELASTIC_RESTART_COUNT"),
)
_OWN: Final = ("PACELINE_RUN_ID", "PACELINE_RESTART")
# torchrun's values for a run without a name.
_NO_NAMES: Final = frozenset({"", "none"})


@dataclass(frozen=True)
class Run:
    """One start of a job according to its launcher; the server counts these as attempts."""

    run_id: str  # the same on all ranks
    restart: int = 0  # restarts within the run, from 0

    def document(self) -> dict[str, str | int]:
        """Return the fields that the server receives."""
        return {"run_id": self.run_id, "restart": self.restart}


def run_from_environment(environment: Mapping[str, str] = os.environ, *, once: bool = False) -> Run:
    """Return the run given by ``PACELINE_RUN_ID``, Slurm or torchrun.

    If none of them counts restarts, or with `once`, every call returns a new run, which the ranks
    have to agree on.
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
    if once or not counts or not names:
        names.append(uuid.uuid4().hex[:12])
    # A restart of the outer launcher resets the count of the inner one.
    return Run("/".join([*names, *counts[:-1]]), int(counts[-1]) if counts else 0)
