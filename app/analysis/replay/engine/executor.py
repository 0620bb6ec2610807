"""Which of the two executors replays a session."""

from __future__ import annotations

import gc
from dataclasses import replace

import numpy as np

from app.analysis.loops import compiled_pays
from app.analysis.replay.engine.memory import keep_freed_memory
from app.analysis.replay.engine.program import Program
from app.analysis.replay.engine.replay import ON_TIME, RECORDED, ArrayReplay, Batch, Block, Executor


def executor_for(program: Program, operations: int) -> Executor:
    """Return the compiled executor where it is loaded already or pays for being loaded.

    Parameters
    ----------
    operations : int
        How many there are to replay.
    """
    if not compiled_pays(operations):
        return ArrayReplay(program)
    from app.analysis.replay.engine.compiled_replay import CompiledReplay  # noqa: PLC0415 - see above

    return CompiledReplay(program)


def warm_up() -> None:
    """Load the compiled executor, so that every replay from now on uses it.

    Takes seconds the first time on a machine: then it is compiled and kept on disk. What is loaded
    by now stays for good: the collector of garbage looks at none of it again, which it did amid
    reports; and so does some of the memory of what is dropped.
    """
    from app.analysis.replay.engine.compiled_replay import CompiledReplay  # noqa: PLC0415 - see above

    program = Program((((0,), ((),), True, (0,)),), frozenset({0}))
    one = np.ones((1, 1, 1))
    batch = Batch(np.full((1, 1), RECORDED, dtype=np.int32), np.empty((0, 1), dtype=bool))
    for late in (None, np.full((1, 1), ON_TIME, dtype=np.int32)):
        block = Block(slice(0, 1), one, one[0, 0], one[:0], one[:0])
        CompiledReplay(program).step_ends(replace(batch, late=late), block)
    keep_freed_memory()
    gc.collect()
    gc.freeze()
