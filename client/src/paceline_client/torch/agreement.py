"""Messages between ranks through the store of the process group.

A broadcast would make ranks wait for the slowest one and mix with the job's own collectives.
Instead, rank 0 writes to the store, and a thread of each other rank polls it over its own
connection.

That thread never blocks inside the store: before Python 3.14, an interpreter that ends while a
thread is in PyTorch's code ends with SIGABRT.
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
import uuid
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

_log = logging.getLogger("paceline_client")

_ANSWER_WITHIN: Final = timedelta(seconds=60)
# Intervals of a rank's polls; the store answers at most about 4,000 requests a second.
_FIRST_POLL_S: Final = 0.01
_POLL_EVERY_S: Final = 0.25
_RANKS_A_SECOND: Final = 4096
# Time limit in seconds for a running request, one round trip, when the process ends.
_EXIT_WAIT_S: Final = 2.0


class Agreement:
    """Messages from rank 0 to all ranks of a job.

    `store` is that of the default process group, or None for a single rank; `prefix` is the prefix
    of the keys, the same on all ranks.
    """

    def __init__(self, store: Any, rank: int, world: int, prefix: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = prefix
        self._messages = 0
        self._every_s = _POLL_EVERY_S + world / _RANKS_A_SECOND
        # Time in seconds within which all ranks read a new message.
        self.message_delay_s = 2 * self._every_s
        self._pid = os.getpid()
        self._closed = threading.Event()
        self._threads: list[threading.Thread] = []

    @staticmethod
    def of_job(
        rank: int, world: int, number: int, make: Callable[[], str]
    ) -> tuple[Agreement, str]:
        """Return the agreement of the group's ranks, and the text that rank 0 made for all.

        `number` counts the agreements of a process; each text of `make` is unique. Raises the
        store's exception if rank 0 does not answer in time.

        torchrun may keep its store when it restarts the ranks, with the keys of their last start.
        So each rank sends a unique request, which rank 0 answers with its text, and the keys of
        this start begin with that text.
        """
        if world == 1:
            return Agreement(None, rank, world, ""), make()
        from torch.distributed import distributed_c10d  # noqa: PLC0415 - available then

        # A separate connection to the store, so that polling does not block the job's own requests.
        store = distributed_c10d._get_default_store().clone()
        root = f"paceline/{number}"
        if rank == 0:
            text = make()
            agreement = Agreement(store, rank, world, f"{root}/{text}")
            agreement._start(agreement._answer, root, text)
            return agreement, text
        request = uuid.uuid4().hex
        store.set(f"{root}/ask/{store.add(f'{root}/asks', 1)}", request)
        store.wait([f"{root}/answer/{request}"], _ANSWER_WITHIN)
        text = str(store.get(f"{root}/answer/{request}").decode())
        return Agreement(store, rank, world, f"{root}/{text}"), text

    def put(self, key: str, value: str) -> None:
        """Store the value of a key for `collect`."""
        if self._store is not None:
            self._store.set(self._name(key), value)

    def collect(self, keys: Sequence[str], receive: Callable[[list[str]], None]) -> None:
        """Call `receive` on a thread with the values of these keys, once all of them exist."""
        self._start(self._collect, keys, receive)

    def broadcast(self, text: str) -> None:
        """Send a message to all ranks; messages arrive in order. Only for rank 0."""
        if self._store is not None:
            self._store.set(self._name(f"told/{self._messages}"), text)
            self._messages += 1

    def listen(self, receive: Callable[[str], None]) -> None:
        """Call `receive` on a thread with each message of rank 0, until the store ends."""
        if self._rank != 0:
            self._start(self._listen, receive)

    def close(self) -> None:
        """End the threads, so that none is inside the store afterwards; also called at exit."""
        if os.getpid() != self._pid:
            # A forked child has no threads, and its copies of locks may never be released.
            return
        self._closed.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_EXIT_WAIT_S)

    def _start(self, target: Callable[..., None], *args: Any) -> None:
        if self._store is None:
            return
        if not self._threads:
            atexit.register(self.close)
        thread = threading.Thread(target=target, args=args, name="paceline-listener", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _answer(self, root: str, text: str) -> None:
        """Answer the requests of all ranks, including requests from an earlier start."""
        number = 1
        while (request := self._await(f"{root}/ask/{number}")) is not None:
            self._store.set(f"{root}/answer/{request}", text)
            number += 1

    def _collect(self, keys: Sequence[str], receive: Callable[[list[str]], None]) -> None:
        texts = [self._await(self._name(key)) for key in keys]
        if None not in texts:
            receive([str(text) for text in texts])

    def _listen(self, receive: Callable[[str], None]) -> None:
        number = 0
        while (text := self._await(self._name(f"told/{number}"))) is not None:
            receive(text)
            number += 1

    def _await(self, name: str) -> str | None:
        """Return the value of a key of the store; None if this job or its store ends before."""
        # Values that all ranks write at the same time arrive soon, so the first polls follow
        # quickly.
        pause_s = _FIRST_POLL_S
        try:
            while not self._closed.is_set():
                if self._store.check([name]):
                    return str(self._store.get(name).decode())
                self._closed.wait(pause_s)
                pause_s = min(2 * pause_s, self._every_s)
        except Exception as error:  # noqa: BLE001 - depends on the version of the store
            _log.debug("the store of rank 0 has ended: %s", error)
        return None

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"
