"""Messages between ranks through a store that may contain those of an earlier start."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from tests.support.extras import of_real_jobs

torch = of_real_jobs("torch")

from paceline_client.torch.agreement import Agreement  # noqa: E402

if TYPE_CHECKING:
    import pytest

WORLD = 3


def test_ranks_that_restart_with_the_same_store_get_the_new_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = torch.distributed.HashStore()
    monkeypatch.setattr(torch.distributed.distributed_c10d, "_get_default_store", lambda: store)

    def start(run: str) -> tuple[list[str], list[str]]:
        """Return the text that each rank gets from rank 0, and the messages that follow."""
        said: dict[int, str] = {}
        heard: list[str] = []
        all_heard = threading.Semaphore(0)

        def hear(text: str) -> None:
            heard.append(text)
            all_heard.release()

        agreements = []

        def join(rank: int) -> None:
            agreement, said[rank] = Agreement.of_job(rank, WORLD, 0, lambda: run)
            agreements.append(agreement)
            if rank == 0:
                agreement.broadcast(f"window of {run}")
            agreement.listen(hear)

        # Rank 0 joins last.
        threads = [threading.Thread(target=join, args=(rank,)) for rank in (2, 1, 0)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for _ in range(WORLD - 1):
            assert all_heard.acquire(timeout=30)
        for agreement in agreements:
            agreement.close()
        return [said[rank] for rank in range(WORLD)], heard

    assert start("first") == (["first"] * WORLD, ["window of first"] * 2)
    assert start("second") == (["second"] * WORLD, ["window of second"] * 2)
