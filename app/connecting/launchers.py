"""What starts the processes of a job, and how it hands them the environment that sending takes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Launcher:
    """A launcher."""

    name: str  # as the command line takes it
    title: str  # as people call it
    # What to add to it, so that every process has the token of a server that asks for one.
    block: str


LAUNCHERS: Final[Mapping[str, Launcher]] = {
    launcher.name: launcher
    for launcher in (
        Launcher(
            "torchrun",
            "torchrun",
            "export PACELINE_TOKEN=…          # on every host, where the server requires tokens\n"
            "torchrun --nproc-per-node=8 train.py",
        ),
        Launcher(
            "slurm",
            "Slurm",
            "export PACELINE_TOKEN=…          # in the batch script; srun passes it on\n"
            "srun --export=ALL python train.py",
        ),
        Launcher(
            "kubernetes",
            "Kubernetes",
            "env:\n"
            "  - name: PACELINE_TOKEN\n"
            "    valueFrom:\n"
            "      secretKeyRef: {name: paceline, key: token}",
        ),
    )
}
