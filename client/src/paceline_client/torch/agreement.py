"""What ranks tell one another, over the store that the process group was made with.

A broadcast of a process group would make ranks wait for the slowest one, and mix with the job's
own collectives. Through the store rank 0 tells, and a thread of each other rank listens, on a
connection of its own.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Final

_log = logging.getLogger("paceline_client")

_ANSWER_WITHIN: Final = timedelta(seconds=60)
_LISTEN_FOR: Final = timedelta(hours=1)


class Agreement:
    """One job's words, told by rank 0 and heard by all.

    Parameters
    ----------
    store
        The default process group's; None where there is one rank only.
    rank : int
    prefix : str
        Of the keys, alike on all ranks.
    """

    def __init__(self, store: Any, rank: int, prefix: str) -> None:
        self._store = store
        self._rank = rank
        self._prefix = prefix
        self._told = 0

    @staticmethod
    def of_job(rank: int, world: int, number: int) -> Agreement:
        """Return the agreement of this process group's ranks; `number` counts those before."""
        store = None
        if world > 1:
            from torch.distributed import distributed_c10d  # noqa: PLC0415 - it is there then

            # A connection of its own: a listening thread must not keep the job's from the store.
            store = distributed_c10d._get_default_store().clone()
        return Agreement(store, rank, f"paceline/{number}")

    def agree(self, key: str, make: Callable[[], str]) -> str:
        """Return what rank 0 makes.

        Raises
        ------
        Exception
            If it does not tell in time: the store's own.
        """
        if self._store is None:
            return make()
        name = f"{self._prefix}/{key}"
        if self._rank == 0:
            self._store.set(name, make())
        else:
            self._store.wait([name], _ANSWER_WITHIN)
        return str(self._store.get(name).decode())

    def put(self, key: str, value: str) -> None:
        """Tell something that `collect` may ask for."""
        if self._store is not None:
            self._store.set(f"{self._prefix}/{key}", value)

    def collect(self, keys: list[str]) -> list[str]:
        """Return what was told under these keys, when all are there.

        Raises
        ------
        Exception
            If it is not told in time: the store's own.
        """
        if self._store is None:
            return []
        names = [f"{self._prefix}/{key}" for key in keys]
        self._store.wait(names, _ANSWER_WITHIN)
        return [str(self._store.get(name).decode()) for name in names]

    def tell(self, text: str) -> None:
        """Tell all ranks something, in order. Rank 0 only."""
        if self._store is not None:
            self._store.set(f"{self._prefix}/told/{self._told}", text)
            self._told += 1

    def listen(self, hear: Callable[[str], None]) -> None:
        """Call `hear` with what rank 0 tells, on a thread, until its store is gone."""
        if self._store is None or self._rank == 0:
            return
        threading.Thread(
            target=self._listen, args=(hear,), name="paceline-listener", daemon=True
        ).start()

    def _listen(self, hear: Callable[[str], None]) -> None:
        number = 0
        while True:
            name = f"{self._prefix}/told/{number}"
            try:
                self._store.wait([name], _LISTEN_FOR)
                text = self._store.get(name).decode()
            except Exception as error:  # noqa: BLE001 - the store has several, by its version
                if "imeout" in str(error) or "imed out" in str(error):
                    continue
                _log.debug("rank 0 is gone: %s", error)
                return
            hear(text)
            number += 1
