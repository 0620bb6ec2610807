"""The job's side: steps, windows, spans, and the end."""

from __future__ import annotations

import atexit
import logging
import os
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any, Final

from paceline_client.recorder import Outcome
from paceline_client.torch.agreement import Agreement
from paceline_client.torch.relay import Relay
from paceline_client.torch.sampling import Sampling, Window
from paceline_client.torch.session import Sender, Session
from paceline_client.torch.tap import Span, Tap
from paceline_client.torch.targets.kind import Job, Undo

_log = logging.getLogger("paceline_client")

_EXIT_WAIT_S: Final = 5.0


class Monitor:
    """What `attach` returns. Nothing here raises into the training, or waits for anything.

    Parameters
    ----------
    tap : Tap
        The switch of the hooks; one that stays off where the job cannot be recorded.
    """

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._broken = True
        self._pid = os.getpid()
        self._job: Job | None = None
        self._undo: list[Undo] = []
        self._sender: Sender | None = None
        self._sampling: Sampling | None = None
        self._agreement: Agreement | None = None
        self._relay: Relay | None = None
        self._recorded = 0
        self._decides = False
        self._records = False
        self._window: Window | None = None
        self._session: Session | None = None
        self._sessions: list[Session] = []
        self._stop: list[Undo] = []

    def begin(  # noqa: PLR0913, PLR0917 - all of them parts of one attachment
        self,
        job: Job,
        undo: list[Undo],
        sender: Sender,
        sampling: Sampling,
        agreement: Agreement,
        relay: Relay | None,
        *,
        records: bool,
    ) -> None:
        """Start to listen; `attach` calls this."""
        self._job = job
        self._undo = undo
        self._sender = sender
        self._sampling = sampling
        self._agreement = agreement
        self._relay = relay
        self._decides = sender.rank == 0
        self._records = records
        self._broken = False
        agreement.listen(self._hear)
        if hasattr(os, "register_at_fork"):
            _at_fork(self)
        # What waits in the spool does not delay the exit.
        atexit.register(self._close, leaving=True)

    @property
    def recording(self) -> bool:
        """Whether the step under way belongs to a session."""
        return self._session is not None

    @property
    def outcomes(self) -> list[Outcome]:
        """The outcome of this rank's share of each session so far."""
        return [session.recorder.outcome() for session in self._sessions]

    def step(self) -> None:
        """End a step, and begin the next; to be called once a step on every rank."""
        if self._broken:
            return
        try:
            self._next_step()
        except Exception as error:  # noqa: BLE001 - whatever it is, the training goes on
            self._break(error)

    def record(self, steps: int | None = None, *, at: int | None = None) -> None:
        """Record a session soon, in addition to those of the schedule.

        Parameters
        ----------
        steps : int, optional
            As many; those of the schedule's windows by default.
        at : int, optional
            The first step, counted as `step` counts. Then every rank has to say the same, before
            that step. Without it rank 0's word counts, and all ranks begin a moment later.
        """
        if self._broken or self._sampling is None:
            return
        steps = steps or self._sampling.steps
        if at is not None:
            self._window = Window(at, steps)
            self._prepare(self._tap.step)
        elif self._decides:
            self._sampling.ask(steps)

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record what runs inside as one operation, in loops that no hook knows.

        Parameters
        ----------
        op : str
            Operation type, such as ``forward-compute``.
        mb, mc : int, optional
            Microbatch; model chunk within the stage.
        """
        return (
            self._tap.computing(op, mb, mc)
            if op.endswith("compute")
            else self._tap.span(op, mb, mc)
        )

    def watch(self, op: str, work: Any, mb: int | None = None, mc: int | None = None) -> Any:
        """Record asynchronous work, such as a transfer, from now until it completes.

        Parameters
        ----------
        work
            What `torch.distributed.isend` and its like return.

        Returns
        -------
        object
            To be waited for in its stead.
        """
        tap = self._tap
        if not tap.on:
            return work
        try:
            return tap.watch(op, work, tap.now(), mb, mc)
        except Exception as error:  # noqa: BLE001 - as in `step`
            self._break(error)
            return work

    def describe(self, meta: Mapping[str, Any]) -> None:
        """Add to the metadata of the session under way, such as its ``sequence_lengths``."""
        session = self._session
        if session is not None:
            try:
                session.recorder.describe(meta)
            except (TypeError, ValueError) as error:
                _log.warning("metadata that JSON cannot say: %s", error)

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until this rank's share of the latest session was delivered, spooled or given up.

        Not for a training's own thread; `close` waits at the end.

        Returns
        -------
        Outcome or None
            None if there is none, or the time is up before.
        """
        if not self._sessions:
            return None
        latest = self._sessions[-1]
        return latest.recorder.wait(timeout_s) if latest.over.wait(timeout_s) else None

    def close(self, wait_s: float = _EXIT_WAIT_S) -> None:
        """Send what is complete of a session under way, and take the hooks off; at exit by itself.

        Parameters
        ----------
        wait_s : float
            Seconds to wait for what is being sent. What has not arrived waits in the spool.
        """
        self._close(wait_s)

    def _close(self, wait_s: float = _EXIT_WAIT_S, *, leaving: bool = False) -> None:
        if os.getpid() != self._pid:
            return
        if self._agreement is not None:
            # Also where recording has ended early: its thread must not outlast this.
            self._agreement.close()
        if self._broken:
            return
        self._broken = True
        try:
            self._end(before=self._tap.step)
            self._detach()
            if leaving:
                for session in self._sessions:
                    session.recorder.leave()
            give_up_at = time.monotonic() + wait_s
            for session in self._sessions:
                if session.over.wait(max(0.0, give_up_at - time.monotonic())):
                    session.recorder.wait(max(0.0, give_up_at - time.monotonic()))
            if self._relay is not None:
                self._relay.finish(self._recorded, give_up_at)
        except Exception as error:  # noqa: BLE001 - a process that ends
            _log.warning("closing: %r", error)

    def _next_step(self) -> None:
        tap = self._tap
        step = tap.step + 1
        if tap.on:
            tap.timeline.end_step()
        session = self._session
        if session is not None and step >= session.window.end:
            self._end()
        tap.step = step
        if self._decides and self._sampling is not None and self._window is None:
            window = self._sampling.decide(step, time.monotonic())
            if window is not None and self._agreement is not None:
                self._agreement.tell(window.text())
                self._window = window
        self._prepare(step)

    def _prepare(self, step: int) -> None:
        """Switch on where a window is near, and begin its session where it begins."""
        window, sampling = self._window, self._sampling
        if window is None or sampling is None or not self._records:
            return
        if step > window.start and self._session is None:
            _log.warning("heard too late of the session from step %d", window.start)
            self._window = None
            self._switch_off()
            return
        if step >= window.start - sampling.warmup and not self._tap.on:
            self._switch_on()
        if step == window.start and self._session is None and self._sender is not None:
            self._tap.timeline.begin()
            session = Session(window, self._sender, self._tap.timeline)
            self._sessions = [*self._sessions[-3:], session]
            self._session = session
            self._tap.sink = session.sink

    def _end(self, before: int | None = None) -> None:
        session, self._session = self._session, None
        if session is None or self._window == session.window:
            # Else this rank lags, and has heard of the next one already.
            self._window = None
        self._tap.sink = None
        self._switch_off()
        if session is not None and (before is None or before > session.window.start):
            for note in self._job.notes if self._job is not None else ():
                session.recorder.describe(
                    note(range(session.window.start, before or session.window.end))
                )
            session.finish(before=before)
            self._recorded += 1
        elif session is not None:
            # Not one step of it is complete.
            session.over.set()
            self._sessions.remove(session)

    def _switch_on(self) -> None:
        job = self._job
        if job is not None:
            self._stop = [begin() for begin in job.on_record]
        self._tap.timeline.begin()
        self._tap.on = True

    def _switch_off(self) -> None:
        self._tap.on = False
        stop, self._stop = self._stop, []
        for one in stop:
            one()

    def _hear(self, text: str) -> None:
        """On the listener's thread."""
        if not self._broken:
            self._window = Window.read(text)

    def _detach(self) -> None:
        undo, self._undo = self._undo, []
        for one in reversed(undo):
            one()

    def _break(self, error: Exception) -> None:
        self._broken = True
        self._tap.on = False
        self._tap.sink = None
        _log.warning("recording ends: %r", error, exc_info=error)

    def _forked(self) -> None:
        """In a forked child: threads are gone, and the session is its parent's."""
        self._broken = True
        self._tap.on = False
        self._tap.sink = None


def _at_fork(monitor: Monitor) -> None:
    reference: Callable[[], Monitor | None] = weakref.ref(monitor)

    def in_child() -> None:
        known = reference()
        if known is not None:
            known._forked()

    os.register_at_fork(after_in_child=in_child)
