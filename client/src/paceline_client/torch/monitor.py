"""The interface of an attached job: steps, recordings, spans, and closing."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import time
import weakref
from collections.abc import Callable, Mapping
from multiprocessing import parent_process, util
from typing import Any, Final

from paceline_client.delivery import finish_job
from paceline_client.exchange import DeliveryError
from paceline_client.pulse.requests import RecordRequest
from paceline_client.pulse.rows import Counts
from paceline_client.recorder import Outcome
from paceline_client.sending import Relay
from paceline_client.torch.agreement import Agreement
from paceline_client.torch.instrumentation.base import Job, Undo
from paceline_client.torch.pulse import RankPulse
from paceline_client.torch.sessions import Sampling, Sender, Session, Window
from paceline_client.torch.tap import Span, Tap

_log = logging.getLogger("paceline_client")

_EXIT_WAIT_S: Final = 5.0
# Part of the wait at the end that is kept for the report of the job's end, and its least duration
# in seconds.
_FINISH_SHARE: Final = 0.2
_LEAST_FINISH_S: Final = 0.2
# The monitors of this process that can record.
_OPEN: Final[set[Monitor]] = set()


class Monitor:
    """The result of `attach`; its methods never raise into the training.

    `tap` is the switch of the hooks, which stays off if the job cannot be recorded.
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
        self._announced = False
        self._records = False
        self._window: Window | None = None
        self._session: Session | None = None
        self._sessions: list[Session] = []
        self._stop: list[Undo] | None = None
        self._pulse: RankPulse | None = None
        # Types of operations that all sessions leave out but those of every rank
        self._hidden: tuple[str, ...] = ()

    def begin(  # noqa: PLR0913, PLR0917 - the parts of an attachment
        self,
        job: Job,
        undo: list[Undo],
        sender: Sender,
        sampling: Sampling,
        agreement: Agreement,
        relay: Relay | None,
        pulse: RankPulse | None,
        *,
        records: bool,
    ) -> None:
        """Start the threads and hooks; called by `attach`."""
        self._job = job
        self._undo = undo
        self._sender = sender
        self._sampling = sampling
        self._agreement = agreement
        self._relay = relay
        self._decides = sender.rank == 0
        self._records = records
        self._broken = False
        _OPEN.add(self)
        agreement.listen(self._receive_window)
        if hasattr(os, "register_at_fork"):
            _at_fork(self)
        if pulse is not None:
            self._pulse = pulse
            pulse.start(self._record_on_request)
            self._switch_on()
        # At exit, spooled shares are not retried; a later process sends them.
        atexit.register(self._close, at_exit=True)
        if parent_process() is not None:
            # A process that `multiprocessing` forked ends without the handlers of `atexit`, and a
            # spawned one calls them when an exception of the training is forgotten.
            util.Finalize(None, self._close, kwargs={"at_exit": True}, exitpriority=0)

    @property
    def recording(self) -> bool:
        """Whether the current step is being recorded."""
        return self._session is not None

    @property
    def outcomes(self) -> list[Outcome]:
        """The present outcomes of this rank's shares."""
        return [session.recorder.outcome() for session in self._sessions]

    @property
    def pulse_counts(self) -> Counts | None:
        """The numbers of rows of this rank's pulse; None without a pulse."""
        return None if self._pulse is None else self._pulse.counts

    def step(self, tokens: int | None = None) -> None:
        """End a step and begin the next; call it once per step on every rank.

        `tokens` are those of this rank in the step that ends: if sequences differ in length, they
        explain most of the differences between steps.
        """
        if self._broken:
            return
        try:
            self._next_step(tokens)
        except Exception as error:  # noqa: BLE001 - the training continues
            self._break(error)

    def record(self, steps: int | None = None, *, at: int | None = None) -> None:
        """Record an additional session of `steps` steps, by default as in periodic sessions.

        `at` is the first step to record; every rank has to call this with the same value before
        that step. Without it, the call of rank 0 counts, and all ranks begin shortly afterwards.
        """
        if self._broken or self._sampling is None:
            return
        steps = steps or self._sampling.steps
        if at is not None:
            self._window = Window(at, steps)
            self._prepare(self._tap.step)
        elif self._decides:
            self._sampling.request(steps)

    def span(self, op: str, mb: int | None = None, mc: int | None = None) -> Span:
        """Record the code inside the context as one operation, for loops without hooks.

        `op` is the operation type, such as ``forward-compute``; `mb` is the microbatch and `mc` the
        model chunk within the stage.
        """
        return (
            self._tap.computing(op, mb, mc)
            if op.endswith("compute")
            else self._tap.span(op, mb, mc)
        )

    def between(self, op: str) -> Span:
        """Record the code inside the context as an operation of this rank between steps.

        `op` is ``data-loading``, ``checkpoint`` or ``evaluation``. No operation inside counts as
        part of a step. PyTorch's loaders, `torch.save` and `torch.distributed.checkpoint.save` are
        recorded without it.

        Examples
        --------
        >>> with monitor.between("evaluation"):
        ...     evaluate(model)
        """
        return self._tap.between(op)

    def watch(self, op: str, work: Any, mb: int | None = None, mc: int | None = None) -> Any:
        """Record asynchronous work, such as from `isend`, from now until it completes.

        Returns the object to wait for instead of `work`.
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
        """Add metadata to the current session, such as ``sequence_lengths``."""
        session = self._session
        if session is not None:
            try:
                session.recorder.describe(meta)
            except (TypeError, ValueError) as error:
                _log.warning("metadata that is not valid JSON: %s", error)

    def wait(self, timeout_s: float | None = None) -> Outcome | None:
        """Wait until this rank's latest share is delivered, spooled or given up.

        Returns None if there is none or the time is up. Not for the training's own thread.
        """
        if not self._sessions:
            return None
        latest = self._sessions[-1]
        return latest.recorder.wait(timeout_s) if latest.finished.wait(timeout_s) else None

    def close(self, wait_s: float = _EXIT_WAIT_S) -> None:
        """Send the current session's complete steps and remove the hooks; also called at exit.

        Waits up to `wait_s` for the server, whatever it answers: for shares that are being sent,
        the others stay in the spool. Rank 0 then reports the end of the job to the server, unless
        an exception ends it: the job's silence is then an incident.
        """
        self._close(wait_s)

    def _close(self, wait_s: float = _EXIT_WAIT_S, *, at_exit: bool = False) -> None:
        if os.getpid() != self._pid:
            return
        give_up_at = time.monotonic() + wait_s
        _OPEN.discard(self)
        if self._agreement is not None:
            # The agreement is closed even if recording has ended early: its threads must end before
            # the interpreter.
            self._agreement.close()
        if self._broken:
            return
        self._broken = True
        try:
            self._end(before=self._tap.step)
            self._stop_hooks()
            undo, self._undo = self._undo, []
            for function in reversed(undo):
                function()
            if at_exit:
                for session in self._sessions:
                    session.recorder.stop_retrying()
            shares_until = give_up_at - _FINISH_SHARE * wait_s * self._decides
            self._wait_for_threads(shares_until)
            if self._relay is not None:
                self._relay.finish(self._recorded, shares_until)
            # A job ends with its last monitor in this process.
            senders = [other._sender for other in _OPEN if not other._broken]
            pages = {other.page for other in senders if other is not None}
            sender = self._sender if self._decides else None
            if sender is not None and sender.page not in pages and not _failing():
                self._finish_job(sender, give_up_at)
        except Exception as error:  # noqa: BLE001 - a process that ends
            _log.warning("closing: %r", error)

    def _wait_for_threads(self, give_up_at: float) -> None:
        """Wait for the shares, then for the end of the pulse, which is less important."""
        if self._pulse is not None:
            self._pulse.end(give_up_at, finished=not _failing())
        for session in self._sessions:
            if session.finished.wait(max(0.0, give_up_at - time.monotonic())):
                session.recorder.wait(max(0.0, give_up_at - time.monotonic()))
        if self._pulse is not None:
            self._pulse.wait(give_up_at)

    def _finish_job(self, sender: Sender, give_up_at: float) -> None:
        timeout_s = max(_LEAST_FINISH_S, give_up_at - time.monotonic())
        try:
            finish_job(sender.server, sender.job, min(timeout_s, sender.retry.timeout_s))
        except DeliveryError as error:
            # Without the report, the server considers the job silent.
            _log.info("the end of the job was not reported to the server: %s", error)

    def _next_step(self, tokens: int | None) -> None:
        tap = self._tap
        step = tap.step + 1
        pulse = self._pulse
        if pulse is not None and not pulse.wanted:
            pulse = self._pulse = None
            tap.pulse = None
            if self._session is None:
                self._stop_hooks()
        if pulse is not None:
            pulse.end_step(tokens)
        elif tap.on:
            tap.end_step()
        session = self._session
        if session is not None and step >= session.window.end:
            self._end()
        tap.step = step
        if self._decides and self._sampling is not None and self._window is None:
            window = self._sampling.decide(step, time.monotonic())
            if window is not None and self._agreement is not None:
                self._agreement.broadcast(window.text())
                self._window = window
                if not self._announced and self._sender is not None:
                    self._announced = True
                    self._sender.announce(window, self._sampling.every_s)
        self._prepare(step)

    def _prepare(self, step: int) -> None:
        """Switch the hooks on before a window of steps, and begin its session."""
        window, sampling = self._window, self._sampling
        if window is None or sampling is None or not (self._records or window.every_rank):
            return
        if step > window.start and self._session is None:
            _log.warning("the session from step %d was announced too late", window.start)
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
            if window.every_rank:
                self._tap.hidden, self._hidden = (), self._tap.hidden
            self._tap.sink = session.sink

    def _end(self, before: int | None = None) -> None:
        session, self._session = self._session, None
        if session is None or self._window == session.window:
            # If the windows differ, this rank is behind, and has already received the next window.
            self._window = None
        self._tap.sink = None
        if session is not None and session.window.every_rank:
            self._tap.hidden = self._hidden
        self._switch_off()
        if session is not None and (before is None or before > session.window.start):
            for note in self._job.notes if self._job is not None else ():
                session.recorder.describe(
                    note(range(session.window.start, before or session.window.end))
                )
            session.finish(before=before)
            self._recorded += 1
        elif session is not None:
            # No step of the session is complete.
            session.finished.set()
            self._sessions.remove(session)

    def _switch_on(self) -> None:
        job = self._job
        if job is not None and self._stop is None:
            self._stop = [begin() for begin in job.on_record]
        self._tap.timeline.begin()
        self._tap.on = True

    def _switch_off(self) -> None:
        """Switch the hooks off, unless the pulse needs them."""
        if self._pulse is None or self._broken:
            self._stop_hooks()

    def _stop_hooks(self) -> None:
        self._tap.on = False
        stop, self._stop = self._stop, None
        for undo in stop or ():
            undo()

    def _record_on_request(self, request: RecordRequest) -> bool:
        """Accept the server's request of a session, on the pulse's thread; False if refused."""
        sampling = self._sampling
        if self._broken or sampling is None or self._window is not None:
            return False
        sampling.request(request.steps, every_rank=request.every_rank)
        return True

    def _receive_window(self, text: str) -> None:
        """Receive a window of steps from rank 0, on the listener's thread."""
        if not self._broken:
            self._window = Window.read(text)

    def _break(self, error: Exception) -> None:
        self._broken = True
        if self._pulse is not None:
            self._pulse.end(time.monotonic(), finished=False)
        self._tap.on = False
        self._tap.sink = None
        _log.warning("recording ends: %r", error, exc_info=error)

    def _forked(self) -> None:
        """Stop recording in a forked child, which has no threads; its parent continues."""
        self._broken = True
        self._tap.on = False
        self._tap.sink = None
        if self._pulse is not None:
            self._pulse.forked()


def _at_fork(monitor: Monitor) -> None:
    reference: Callable[[], Monitor | None] = weakref.ref(monitor)

    def in_child() -> None:
        alive = reference()
        if alive is not None:
            alive._forked()

    os.register_at_fork(after_in_child=in_child)


def _failing() -> bool:
    """Return whether an exception is being handled, or has ended the main thread.

    An exit with code 0 is no failure.
    """
    error = sys.exc_info()[1]
    if isinstance(error, SystemExit):
        return bool(error.code)
    return error is not None or getattr(sys, "last_value", None) is not None
