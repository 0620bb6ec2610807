"""What ranks tell one another, over the store that the process group was made with.

A broadcast of a process group would make ranks wait for the slowest one, and mix with the job's
own collectives. Through the store rank 0 tells, and a thread of each other rank looks now and then,
on a connection of its own.

That thread never waits inside of the store. An interpreter that ends takes its threads with it, and
one that is in PyTorch's code then takes the whole process along, with SIGABRT (before Python 3.14).
"""

from __future__ import annotations

import atexit
import logging
import os
import threading
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any, Final

_log = logging.getLogger("paceline_client")

_ANSWER_WITHIN: Final = timedelta(seconds=60)
# Between two looks of a rank, so that the store has some 4,000 a second to answer at most.
_FIRST_PAUSE_S: Final = 0.01
_LOOK_EVERY_S: Final = 0.25
_RANKS_A_SECOND: Final = 4096
# For a look under way, which takes a round trip. At the end of the process only.
_LEAVE_WITHIN_S: Final = 2.0


class Agreement:
    """One job's words, told by rank 0 and heard by all.

    Parameters
    ----------
    store
        The default process group's; None where there is one rank only.
    rank, world : int
        This rank, and how many there are.
    prefix : str
        Of the keys, alike on all ranks.

    Attributes
    ----------
    heard_within_s : float
        Seconds after which all ranks have looked for what was told.
    """

    def __init__(self, store: Any, rank: int, world: int, prefix: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = prefix
        self._told = 0
        self._every_s = _LOOK_EVERY_S + world / _RANKS_A_SECOND
        self.heard_within_s = 2 * self._every_s
        self._pid = os.getpid()
        self._over = threading.Event()
        self._threads: list[threading.Thread] = []

    @staticmethod
    def of_job(rank: int, world: int, number: int) -> Agreement:
        """Return the agreement of this process group's ranks; `number` counts those before."""
        store = None
        if world > 1:
            from torch.distributed import distributed_c10d  # noqa: PLC0415 - it is there then

            # A connection of its own: a thread that looks must not keep the job's from the store.
            store = distributed_c10d._get_default_store().clone()
        return Agreement(store, rank, world, f"paceline/{number}")

    def agree(self, key: str, make: Callable[[], str]) -> str:
        """Return what rank 0 makes; waits for it.

        Raises
        ------
        Exception
            If it does not tell in time: the store's own.
        """
        if self._store is None:
            return make()
        name = self._name(key)
        if self._rank == 0:
            self._store.set(name, make())
        else:
            self._store.wait([name], _ANSWER_WITHIN)
        return self._get(name)

    def put(self, key: str, value: str) -> None:
        """Tell something that `collect` may ask for."""
        if self._store is not None:
            self._store.set(self._name(key), value)

    def collect(self, keys: Sequence[str], hear: Callable[[list[str]], None]) -> None:
        """Call `hear` with what was told under these keys, on a thread, once all are there."""
        self._start(self._collect, keys, hear)

    def tell(self, text: str) -> None:
        """Tell all ranks something, in order. Rank 0 only."""
        if self._store is not None:
            self._store.set(self._name(f"told/{self._told}"), text)
            self._told += 1

    def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with what rank 0 tells, on a thread, until `close` or its store is gone."""
        if self._rank != 0:
            self._start(self._listen, hear)

    def close(self) -> None:
        """Hear no more: when this returns no thread is inside of the store. At exit by itself."""
        if os.getpid() != self._pid:
            # A fork has no threads, and locks that are never released.
            return
        self._over.set()
        threads, self._threads = self._threads, []
        for thread in threads:
            thread.join(_LEAVE_WITHIN_S)

    def _start(self, target: Callable[..., None], *given: Any) -> None:
        if self._store is None:
            return
        if not self._threads:
            atexit.register(self.close)
        thread = threading.Thread(target=target, args=given, name="paceline-listener", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _collect(self, keys: Sequence[str], hear: Callable[[list[str]], None]) -> None:
        texts = [self._await(key) for key in keys]
        if None not in texts:
            hear([str(text) for text in texts])

    def _listen(self, hear: Callable[[str], None]) -> None:
        number = 0
        while (text := self._await(f"told/{number}")) is not None:
            hear(text)
            number += 1

    def _await(self, key: str) -> str | None:
        """Return what is told under a key; None if this job or its store ends before."""
        name = self._name(key)
        # What all ranks tell at once is there in a moment.
        pause_s = _FIRST_PAUSE_S
        try:
            while not self._over.is_set():
                if self._store.check([name]):
                    return self._get(name)
                self._over.wait(pause_s)
                pause_s = min(2 * pause_s, self._every_s)
        except Exception as error:  # noqa: BLE001 - the store has several, by its version
            _log.debug("rank 0 is gone: %s", error)
        return None

    def _get(self, name: str) -> str:
        return str(self._store.get(name).decode())

    def _name(self, key: str) -> str:
        return f"{self._prefix}/{key}"
