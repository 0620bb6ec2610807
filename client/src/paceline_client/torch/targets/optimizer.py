"""Optimizers of PyTorch, by the global hooks of their steps."""

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
            tap.computed = None
            starts.append(tap.now() if tap.on else None)

        def after(*_: Any) -> None:
            start = starts.pop() if starts else None
            # The step of a nested optimizer is part of the outer one.
            if start is not None and tap.on and not starts:
                # Computations of a closure, such as Lightning's, are not part of the optimizer.
                tap.add(OPTIMIZER, start if tap.computed is None else tap.computed, tap.now())

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
