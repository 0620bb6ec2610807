"""What a rank does between steps: PyTorch's loaders give batches, and checkpoints are saved.

Only on the main thread: what others save in the background holds up no step.
"""

from __future__ import annotations

import threading
from typing import Any, Final

from paceline_client.torch.tap import CHECKPOINT, DATA_LOADING
from paceline_client.torch.targets.kind import Function, Hook, Job, Level, Target


def _recorded(op: str, job: Job, original: Function) -> Function:
    tap = job.tap

    def called(*args: Any, **kwargs: Any) -> Any:
        aside = not tap.on or tap.depth or not tap.takes
        if aside or threading.current_thread() is not threading.main_thread():
            return original(*args, **kwargs)
        with tap.between(op):
            return original(*args, **kwargs)

    return called


def _loading(job: Job, original: Function) -> Function:
    return _recorded(DATA_LOADING, job, original)


def _saving(job: Job, original: Function) -> Function:
    return _recorded(CHECKPOINT, job, original)


BETWEEN: Final = Target(
    "between",
    "loaders and checkpoints",
    wanted=lambda _: True,
    hooks=(
        Hook(
            "torch.utils.data.dataloader:_BaseDataLoaderIter.__next__",
            ("self",),
            Level.COMPUTE,
            _loading,
        ),
        Hook("torch:save", ("obj", "f"), Level.COMPUTE, _saving),
        Hook("torch.distributed.checkpoint:save", ("state_dict",), Level.COMPUTE, _saving),
    ),
)
