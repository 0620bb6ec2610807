"""The process that decodes the inbox: ``python -m workers.inbox``, until SIGTERM.

It reads the database, not the broker, so that a full or missing Redis does not stop it. Any number
of such processes may run; each claims bodies that no other has claimed. A process decodes either
chunks or pulses, so that pulses do not wait behind a flush of chunks.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from app.platform import processes as child
from workers.child import SINGLE_THREADED

if TYPE_CHECKING:
    from app.platform.container import Container


# The kinds of bodies that a process can decode.
CHUNKS: Final = "chunk"
PULSES: Final = "pulse"
QUEUES: Final = (CHUNKS, PULSES)

# Maximum time in seconds that a body waits before an idle process finds it.
POLL_S: Final = 0.5
# Niceness of the processes: pages, and processes that receive bodies, have priority over the
# decoding of chunks, which were acknowledged already. Pulses are small and useless later.
NICENESS: Final = {CHUNKS: 5, PULSES: 0}
# Pause in seconds before the database or the object store is tried again.
PAUSE_S: Final = 2.0


def absorb_until(container: Container, stop: threading.Event, queue: str = CHUNKS) -> None:
    """Decode the bodies of a queue until the event is set."""
    # Imported only in a process that decodes, because it loads numpy and pyarrow with their
    # threads.
    from app.pulse.advance import advance_pulses  # noqa: PLC0415
    from app.sessions.chunks.absorb import absorb  # noqa: PLC0415
    from app.sessions.receive import give_back  # noqa: PLC0415

    taker = _Taker(queue, advance_pulses if queue == PULSES else absorb)
    while not stop.is_set():
        taken = taker.take(container)
        give_back()
        if not taken:
            stop.wait(POLL_S)


@dataclass(slots=True)
class _Taker:
    """Decodes bodies of one kind in batches."""

    name: str
    batch: Callable[[Container], int]
    failing: bool = False
    again_s: float = 0.0

    def take(self, container: Container) -> bool:
        """Decode a batch; return whether there were bodies to decode."""
        if time.monotonic() < self.again_s:
            return False
        try:
            taken = self.batch(container)
        except Exception as error:  # noqa: BLE001 - the bodies wait, whatever it was
            # Log the first failure only, so that a night without a database adds a single line.
            if not self.failing:
                import structlog  # noqa: PLC0415

                structlog.get_logger(__name__).warning(
                    "the inbox is not taken, trying on", kind=self.name, error=str(error)
                )
            self.failing = True
            self.again_s = time.monotonic() + PAUSE_S
            return False
        self.failing = False
        return taken > 0


def main() -> int:
    """Decode bodies until SIGTERM; the configuration comes from the environment."""
    os.environ.update(dict.fromkeys(SINGLE_THREADED, "1"))
    options = child.options("workers.inbox", __doc__)
    options.add_argument("--queue", choices=QUEUES, default=CHUNKS, help="what is taken")
    arguments = child.asked(options)
    os.nice(NICENESS[arguments.queue])
    from app.platform.resources import loading  # noqa: PLC0415 - importing numpy starts its threads

    with loading():
        from app.bootstrap import build  # noqa: PLC0415
        from app.platform.logs import configure_logging  # noqa: PLC0415
        from app.platform.settings import Settings  # noqa: PLC0415
        from workers.heartbeat import Heartbeat  # noqa: PLC0415

    settings = Settings()
    configure_logging(json=settings.log_json, level=settings.log_level)
    stop = child.stop_on_signals()
    # Names that existing installations use: the process for chunks is called "inbox".
    name = "pulse" if arguments.queue == PULSES else "inbox"
    container = build(settings, application_name=f"paceline worker {name}")
    heartbeat = Heartbeat(settings, name)
    heartbeat.start()
    try:
        absorb_until(container, stop, arguments.queue)
    finally:
        heartbeat.stop()
        container.close()
    return 0


if __name__ == "__main__":
    child.run(main)
