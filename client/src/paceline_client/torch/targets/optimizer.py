"""Optimizers of PyTorch, by the global hooks of their steps.

What the rank does between its last recorded operation and the optimizer, such as unscaling and
clipping gradients, is recorded with the optimizer: it is the rank's own work.
"""

from __future__ import annotations

from typing import Any, Final

from torch.optim import optimizer as torch_optimizer

from paceline_client.torch.tap import OPTIMIZER
from paceline_client.torch.targets.kind import Job, Level, Target, Undo


def _install(job: Job, _level: Level) -> Undo:
    tap = job.tap

    def record() -> Undo:
        starts: list[Any] = []

        def before(*_: Any) -> None:
            tap.flush()
            if not tap.on:
                starts.append(None)
                return
            start = tap.begins(OPTIMIZER)
            starts.append(start if tap.ended is None else tap.ended)

        def after(*_: Any) -> None:
            start = starts.pop() if starts else None
            # The step of a nested optimizer is part of the outer one.
            if start is not None and tap.on and not starts:
                tap.flush()
                # Computations of a closure, such as Lightning's, are not part of the optimizer.
                tap.add(OPTIMIZER, start if tap.ended is None else tap.ended, tap.now())

        handles = [
            torch_optimizer.register_optimizer_step_pre_hook(before),
            torch_optimizer.register_optimizer_step_post_hook(after),
        ]

        def stop() -> None:
            for handle in handles:
                handle.remove()

        return stop

    return job.while_recording(record)


OPTIMIZERS: Final = Target("optimizer", "torch.optim", wanted=lambda _: True, install=_install)
