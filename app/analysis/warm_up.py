"""Compile all loops after an installation: ``python -m app.analysis.warm_up``.

Compiling takes about ten seconds, once on a machine, as the code is cached on disk. Loading from
the cache takes half a second.
"""

from __future__ import annotations

from app.analysis.planning.warm_up import warm_up as warm_up_planner
from app.analysis.replay.engine.executors import warm_up as warm_up_replay
from app.analysis.trace.readers.ndjson_compiled import warm_up as warm_up_lines


def warm_up() -> None:
    """Compile the loops that replay, plan and read lines, or load them from the cache on disk."""
    warm_up_lines()
    warm_up_replay()
    warm_up_planner()


if __name__ == "__main__":
    warm_up()
