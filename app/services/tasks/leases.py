"""Keeps the leases of a process's claims, and gives them back when the process is to stop."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from app.db.faults import said
from app.errors import LostClaimError
from app.services.container import Claim
from app.services.tasks.task_runs import give_back, interrupt, renew

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.services.container import Container

# A database that restarts refuses connections for a few seconds. Waiting a whole renewal interval
# after a failure would leave one try, not several, before the lease is over.
RETRY_S: Final = 1.0

_log = structlog.get_logger(__name__)


class LeaseKeeper:
    """One thread that renews every claim held in this process.

    A thread goes on while the work is inside of numpy, which a signal handler in Python could not:
    handlers run between two byte codes of the main thread.

    Parameters
    ----------
    container : Container
    """

    def __init__(self, container: Container) -> None:
        self._container = container
        self._held: dict[Claim, None] = {}
        # That no worker works on any more, which the database could not be told.
        self._owed: dict[Claim, None] = {}
        self._lock = threading.Lock()
        self._stop = threading.Event()
        # There is something new to do, or no more.
        self._look = threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def stopping(self) -> bool:
        """Return whether no further claim may be taken."""
        return self._stop.is_set()

    def stop(self) -> None:
        """Give back every claim; returns when that is done. Stopping twice is harmless.

        The work on them goes on in its threads, for nothing: it cannot be stored any more.
        """
        self._stop.set()
        self._look.set()
        if self._thread is not None:
            self._thread.join()
        for claim in self._snapshot():
            self._give_back(claim)
        self._settle_debts()

    @contextlib.contextmanager
    def hold(self, claim: Claim) -> Iterator[None]:
        """Renew a claim for as long as the context lasts.

        Raises
        ------
        LostClaimError
            If the process was told to stop before the claim got here; it is given back.
        """
        with self._lock:
            late = self._stop.is_set()
            if not late:
                self._held[claim] = None
                if self._thread is None:
                    self._thread = threading.Thread(
                        target=self._run, name="paceline-leases", daemon=True
                    )
                    self._thread.start()
        if late:
            give_back(self._container, claim)
            raise LostClaimError("this worker is stopping")
        try:
            yield
        except (SystemExit, KeyboardInterrupt):
            # Told to stop by a signal of its own: a service manager may send it to every process.
            self._give_back(claim)
            raise
        finally:
            with self._lock:
                self._held.pop(claim, None)

    def owe(self, claim: Claim) -> None:
        """Give a claim back as soon as the database answers: its work was interrupted by that."""
        with self._lock:
            self._owed[claim] = None
        self._look.set()

    def _run(self) -> None:
        pause_s = self._container.settings.lease_renew_s
        while not self._stop.is_set():
            if self._look.wait(pause_s):
                self._look.clear()
                pause_s = RETRY_S
                continue
            pause_s = self._container.settings.lease_renew_s
            if not self._settle_debts():
                pause_s = min(pause_s, RETRY_S)
            for claim in self._snapshot():
                try:
                    kept = renew(self._container, claim)
                except SQLAlchemyError as error:
                    _log.warning("lease not renewed", run=str(claim.run_id), error=said(error))
                    pause_s = min(pause_s, RETRY_S)
                    continue
                if not kept and claim in self._snapshot():
                    # Another worker may be at work. What is computed here is refused at the end;
                    # to interrupt it would save time only in a case that should not happen.
                    _log.error("lease lost", run=str(claim.run_id), attempt=claim.attempt)
                    with self._lock:
                        self._held.pop(claim, None)

    def _settle_debts(self) -> bool:
        """Return whether nothing is owed any more."""
        with self._lock:
            owed = list(self._owed)
        for claim in owed:
            try:
                interrupt(self._container, claim)
            except SQLAlchemyError as error:
                _log.warning("claim not given back", run=str(claim.run_id), error=said(error))
                return False
            with self._lock:
                del self._owed[claim]
        return True

    def _give_back(self, claim: Claim) -> None:
        try:
            given = give_back(self._container, claim)
        except SQLAlchemyError as error:
            # The lease runs out by itself; the attempt then counts as a killed one.
            _log.warning("lease not given back", run=str(claim.run_id), error=said(error))
            return
        # Otherwise the work was finished just now, or lost before.
        if given:
            _log.info("lease given back", run=str(claim.run_id))

    def _snapshot(self) -> list[Claim]:
        with self._lock:
            return list(self._held)
