"""One session of one rank, and its recorder."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote

from paceline_client.delivery import RetryPolicy, Share
from paceline_client.recorder import Recorder
from paceline_client.runs import Run
from paceline_client.spool import Spool
from paceline_client.torch.greeting import miss_collectives
from paceline_client.torch.layout import Layout
from paceline_client.torch.sampling import Window
from paceline_client.torch.tap import Timeline
from paceline_client.torch.targets.kind import Level

_log = logging.getLogger("paceline_client")

# For work that the job never waits for, such as transfers whose peer has ended.
_SETTLE_S: Final = 30.0
# How often a rank sends what it has recorded: of a job of a thousand ranks 16 a second.
_CHUNK_EVERY_S: Final = 10.0
_RANKS_A_SECOND: Final = 20


@dataclass(frozen=True)
class Sender:
    """The destination and the common data of a rank's shares."""

    server: str
    job: str
    run: Run
    rank: int
    layout: Layout
    meta: dict[str, Any]  # of every session; a session adds to it
    spool: Spool
    hand_over: bool
    retry: RetryPolicy
    buffer_operations: int
    level: Level

    @property
    def page(self) -> str:
        """The address of the job's page."""
        return f"{self.server.rstrip('/')}/jobs/{quote(self.job, safe='')}"

    def recorder(self, window: Window) -> Recorder:
        """Return a recorder for this rank's share of a session."""
        return Recorder(
            self.server,
            self.job,
            self.meta,
            share=Share(window.session, f"rank-{self.rank}", self.run),
            spool=self.spool,
            hand_over=self.hand_over,
            buffer_operations=self.buffer_operations,
            chunk_every_s=_CHUNK_EVERY_S + self.layout.world / _RANKS_A_SECOND,
            retry=self.retry,
        )


@dataclass
class Session:
    """A window that is being recorded."""

    window: Window
    sender: Sender
    timeline: Timeline
    recorder: Recorder = field(init=False)
    # Set when all operations have reached the recorder and it is finished.
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.recorder = self.sender.recorder(self.window)

    def sink(  # noqa: PLR0913, PLR0917 - the coordinates of an operation
        self, op: str, start_ns: int, duration_ns: int, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Record an operation of this rank."""
        layout = self.sender.layout
        self.recorder.op(
            self.sender.rank,
            op,
            start_ns,
            duration_ns,
            step=step,
            dp=layout.dp_rank,
            pp=layout.pp_rank,
            mb=mb,
            mc=mc,
            tp=layout.tp_rank if layout.tp > 1 else None,
        )

    def finish(self, *, before: int | None = None) -> None:
        """Send the session in the background, without incomplete steps, from `before` on."""
        if before is not None:
            self.recorder.leave_out(range(before, self.window.end))
        threading.Thread(target=self._finish, name="paceline-session", daemon=True).start()

    def _finish(self) -> None:
        try:
            self.timeline.settle(_SETTLE_S)
            measured = {key: value for key, value in self.timeline.measured().items() if value}
            said = {f"rank-{self.sender.rank}": measured} if measured else {}
            self.recorder.describe({"clocks": said} if said else {})
        except Exception:  # noqa: BLE001 - the operations are still sent
            _log.exception("measurements of the clock are left out")
        finally:
            miss_collectives(self.sender, self.window, self.recorder.op_types)
            self.recorder.finish()
            self.over.set()
