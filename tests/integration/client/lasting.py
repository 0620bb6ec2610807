"""A data-parallel job that trains until it is told to stop, one of whose ranks may be slow."""

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
# Files of the job's directory: the rank is slow as long as the first is there, and the second holds
# the number of the last step.
SLOW: Final = "slow"
LAST: Final = "last"


class Lasting:
    """Trains a small model; what takes long in forward and backward are pauses, as with a device.

    So ranks take as long as they are to on two processors that others use as well.

    Parameters
    ----------
    directory : Path
        By its name the job is called.
    pause_s : float
        Of a step, a third of it in the forward.
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
        """Have steps of this rank take longer, as long as it is to be slow."""
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
        """Return whether the job ends with this step, which all ranks reach."""
        try:
            return number >= int(self._last.read_text())
        except (FileNotFoundError, ValueError):
            return False
