"""Sends the shares in a host's spool, of earlier runs and of other ranks."""

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
    """Runs on the first rank of a host.

    `others` is the number of ranks of this host that leave their shares in the spool, 0 if each
    rank sends its own.
    """

    def __init__(self, spool: Spool, url: str, others: int) -> None:
        self._spool = spool
        self._url = url
        self._others = others
        self._lock = threading.Lock()
        self._sent = 0

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="paceline-relay", daemon=True).start()

    def finish(self, sessions: int, give_up_at_s: float) -> None:
        """Send the rest, until the other ranks' shares of `sessions` sessions are sent or spooled.

        Gives up at `give_up_at_s` by `time.monotonic`.
        """
        while time.monotonic() < give_up_at_s:
            left = self._send()
            if self._sent + left >= self._others * sessions:
                # The remaining shares are in the spool, and the server is unavailable.
                return
            time.sleep(_AT_THE_END_EVERY_S)

    def _run(self) -> None:
        # Only shares from now on count as those of other ranks.
        self._send()
        self._sent = 0
        while self._others:
            time.sleep(_EVERY_S)
            self._send()

    def _send(self) -> int:
        """Send what is in the spool, and return of how many shares the last chunk is left."""
        with self._lock:
            try:
                done = send_waiting(self._spool, self._url)
            except Exception:  # noqa: BLE001 - a thread in the user's process
                _log.exception("sending the spool failed")
                return 0
            self._sent += done.sent_shares
            return done.left_shares
