"""One session of one rank: its recorder, and the steps that are complete."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass, field
from typing import Any, Final

from paceline_client.delivery import RetryPolicy, Share
from paceline_client.recorder import Recorder
from paceline_client.runs import Run
from paceline_client.spool import Spool
from paceline_client.torch.layout import Layout
from paceline_client.torch.sampling import Window
from paceline_client.torch.tap import Timeline

_log = logging.getLogger("paceline_client")

# For works that the job never waits for, such as transfers whose peer is gone.
_SETTLE_S: Final = 30.0


@dataclass(frozen=True)
class Sender:
    """Where a rank's shares go, and what all of them say."""

    server: str
    job: str
    run: Run
    rank: int
    layout: Layout
    meta: dict[str, Any]  # of every session; joined with what a session adds
    spool: Spool
    hand_over: bool
    retry: RetryPolicy
    buffer_operations: int

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
            retry=self.retry,
        )


@dataclass
class Session:
    """A window that is being recorded."""

    window: Window
    sender: Sender
    timeline: Timeline
    recorder: Recorder = field(init=False)
    # threading.Event: everything recorded has come to the recorder, which was finished
    over: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self.recorder = self.sender.recorder(self.window)

    def sink(  # noqa: PLR0913, PLR0917 - an operation has that many coordinates
        self, op: str, start_ns: int, duration_ns: int, step: int, mb: int | None, mc: int | None
    ) -> None:
        """Take an operation of this rank."""
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
        """Send what was recorded, in the background.

        Parameters
        ----------
        before : int, optional
            The step that was not completed: it and those after are left out.
        """
        if before is not None:
            self.recorder.leave_out(range(before, self.window.end))
        threading.Thread(target=self._finish, name="paceline-session", daemon=True).start()

    def _finish(self) -> None:
        try:
            self.timeline.settle(_SETTLE_S)
            measured = {key: value for key, value in self.timeline.measured().items() if value}
            said = {f"rank-{self.sender.rank}": measured} if measured else {}
            self.recorder.describe({"clocks": said} if said else {})
        except Exception:  # noqa: BLE001 - the operations are worth more
            _log.exception("what the session says of its clock is left out")
        finally:
            self.recorder.finish()
            self.over.set()
