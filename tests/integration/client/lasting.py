"""A data-parallel job that trains until it is stopped, one of whose ranks can be slowed."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import paceline_client.torch as paceline

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 16
BATCH = 8
# Files in the job's directory: the rank is slow while the first exists; the second contains the
# number of the last step.
SLOW: Final = "slow"
LAST: Final = "last"


class Lasting:
    """Trains a small model whose forward and backward passes are mostly pauses.

    With pauses, a rank's duration does not depend on other programs on two shared processors.

    Parameters
    ----------
    directory : Path
        Its name is the name of the job.
    pause_s : float
        Pause of a step in seconds, a third of it in the forward pass.
    """

    def __init__(self, directory: Path, pause_s: float) -> None:
        torch.manual_seed(7)
        self._name = directory.name
        self._slow, self._last = directory / SLOW, directory / LAST
        self._pause_s, self._slow_s = pause_s, 0.0
        layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(4)))
        layers[-1].register_forward_pre_hook(lambda *_: self._pause(1 / 3))
        layers[-1].register_full_backward_pre_hook(lambda *_: self._pause(2 / 3))
        self.model: Any = DistributedDataParallel(layers)
        self.optimizer = torch.optim.Adam(self.model.parameters(), lr=1e-3)

    def _pause(self, share: float) -> None:
        is_slow = self._slow_s > 0 and self._slow.exists()
        time.sleep(share * (self._pause_s + self._slow_s * is_slow))

    def slow_down(self, seconds: float) -> None:
        """Make the steps of this rank take longer while it is to be slow."""
        self._slow_s = seconds

    def attach(self, url: str, **how: Any) -> paceline.Monitor:  # noqa: ANN401
        return paceline.attach(url, self._name, model=self.model, **how)

    def step(self, number: int) -> float:
        batch = torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(number))
        loss = self.model(batch).square().mean()
        loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return float(loss.item())

    def is_last(self, number: int) -> bool:
        """Return whether this is the job's last step, which all ranks reach."""
        try:
            return number >= int(self._last.read_text())
        except (FileNotFoundError, ValueError):
            return False
