"""An HTTP server that receives alerts."""

from __future__ import annotations

import threading
from collections.abc import Callable

from benchmarks.support.receiver import Got, PostServer, Reply

Answer = Callable[[Got], Reply]


class Receiver(PostServer):
    """Stores requests, and answers as configured."""

    def __init__(self, answer: Answer = lambda _: Reply()) -> None:
        super().__init__()
        self.answer = answer
        self.got: list[Got] = []
        self._lock = threading.Lock()

    def take(self, got: Got) -> Reply:
        with self._lock:
            self.got.append(got)
        return self.answer(got)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/hook"
