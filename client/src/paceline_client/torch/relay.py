"""Sends what waits in a host's spool: what earlier runs left, and what other ranks put there."""

from __future__ import annotations

import logging
import threading
import time
from typing import Final

from paceline_client.sending import send_waiting
from paceline_client.spool import Spool

_log = logging.getLogger("paceline_client")

_EVERY_S: Final = 2.0
_AT_THE_END_EVERY_S: Final = 0.1


class Relay:
    """The part of the first rank of a host.

    Parameters
    ----------
    spool : Spool
    url : str
        The server.
    others : int
        Ranks of this host that leave their shares in the spool; 0 where each sends its own.
    """

    def __init__(self, spool: Spool, url: str, others: int) -> None:
        self._spool = spool
        self._url = url
        self._others = others
        self._lock = threading.Lock()
        self._sent = 0

    def start(self) -> None:
        """Begin, on a thread of its own."""
        threading.Thread(target=self._run, name="paceline-relay", daemon=True).start()

    def finish(self, sessions: int, give_up_at_s: float) -> None:
        """Send the rest, until all others' shares of `sessions` sessions are sent or spooled.

        Parameters
        ----------
        give_up_at_s : float
            By `time.monotonic`.
        """
        while time.monotonic() < give_up_at_s:
            left = self._send()
            if self._sent + left >= self._others * sessions:
                # What is left waits in the spool for a server that is away.
                return
            time.sleep(_AT_THE_END_EVERY_S)

    def _run(self) -> None:
        # What others will leave is counted from here on.
        self._send()
        self._sent = 0
        while self._others:
            time.sleep(_EVERY_S)
            self._send()

    def _send(self) -> int:
        """Return how many still wait."""
        with self._lock:
            try:
                sent, left = send_waiting(self._spool, self._url)
            except Exception:  # noqa: BLE001 - a thread in the user's process
                _log.exception("the spool is not sent")
                return 0
            self._sent += sent
            return left
