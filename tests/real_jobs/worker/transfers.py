"""Point-to-point transfers with individual ends, and with time on the wire if a job has it.

Gloo's works can be waited for only once, and do not report completion before. A thread therefore
waits for each and takes the time of its end; the job waits for the thread.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final

import torch
import torch.distributed as dist

from tests.real_jobs.jobs import Ends
from tests.real_jobs.worker.recording import Label, Recorder

_MOST_AT_ONCE: Final = 96


class Handle:
    """A pending transfer, with the `wait` of `torch.distributed.Work`."""

    def __init__(self, done: Future[None], at_wait: Callable[[], None] | None) -> None:
        self._done = done
        self._at_wait = at_wait

    def wait(self) -> bool:
        """Wait until the transfer is complete."""
        self._done.result()
        if self._at_wait is not None:
            self._at_wait()
            self._at_wait = None
        return True


class Transfers:
    """Sends and receives of one worker.

    Parameters
    ----------
    ends : Ends
        When the end of a transfer is taken.
    """

    def __init__(self, ends: Ends) -> None:
        self._ends = ends
        self._threads = ThreadPoolExecutor(_MOST_AT_ONCE)
        # The next tag by peer and direction, because both ends post in the same order.
        self._tags: Counter[tuple[int, int, bool]] = Counter()

    def post(
        self,
        recorder: Recorder,
        label: Label,
        tensor: torch.Tensor,
        *,
        send: bool,
        peer: int,
        group: Any,  # noqa: ANN401 - torch's, without types
        wire_s: float,
    ) -> Handle:
        """Begin a transfer with a global rank."""
        step, start = recorder.step, time.time_ns()
        key = (id(group), peer, send)
        tag = 2 * self._tags[key]
        self._tags[key] += 1
        act = dist.isend if send else dist.irecv
        if wire_s:
            token = torch.zeros(1)
            posted = act(token, peer, group=group, tag=tag)
            payload = None if send else act(tensor, peer, group=group, tag=tag + 1)

            def complete() -> None:
                # The token's send completes when its receiver has posted.
                posted.wait()
                if payload is not None:
                    payload.wait()
                else:
                    time.sleep(wire_s)
                    act(tensor, peer, group=group, tag=tag + 1).wait()

        else:
            complete = act(tensor, peer, group=group, tag=tag).wait
        return self.watch(recorder, label, complete, step, start)

    def watch(
        self,
        recorder: Recorder,
        label: Label,
        complete: Callable[[], object],
        step: int,
        start_ns: int,
    ) -> Handle:
        """Record a pending transfer; `complete` returns when it is complete."""
        watched: Handle | None = recorder.watch(label, complete)
        if watched is not None:
            return watched

        def record() -> None:
            recorder.add(label, start_ns, time.time_ns(), step)

        def run() -> None:
            complete()
            if self._ends is Ends.DONE:
                record()

        done = self._threads.submit(run)
        return Handle(done, record if self._ends is Ends.WAITED else None)

    def close(self) -> None:
        """End the threads, after all transfers are complete."""
        self._threads.shutdown()
