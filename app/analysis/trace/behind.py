"""Work on a second core behind that of the first."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")


def take_one_behind(items: Iterator[T], take: Callable[[T], None]) -> None:
    """Have each item taken on a second core while the next one is made.

    They are made here: a new thread's memory is new to Arrow, and touching it takes as long as
    decoding a fifth of what goes there.
    """
    # Small bodies need none, and it loads logging with it.
    from concurrent.futures import Future, ThreadPoolExecutor  # noqa: PLC0415

    with ThreadPoolExecutor(1) as pool:
        taken: Future[None] | None = None
        item: T | None
        while True:
            try:
                item = next(items, None)
            finally:
                # Its refusal comes before that of what follows it.
                if taken is not None:
                    taken.result()
            if item is None:
                return
            taken = pool.submit(take, item)
