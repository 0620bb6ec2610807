"""Cost of the client for a training: an operation, a step, a burst, memory (`make bench-client`).

Times are processor times of the training's thread, the smallest of several rounds, so that other
processes of the machine do not count. The framework's own call of a hook is not included.
"""

from __future__ import annotations

import argparse
import importlib.util
import resource
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from paceline_client import Outcome, Recorder, RetryPolicy, Share, Spool

_META: Final = {"dp": 1, "pp": 1, "tp": 1, "cp": 1, "vpp": 1, "world": 1}
_ROUND: Final = 10_000
_ROUNDS: Final = 20
_OPERATIONS_A_STEP: Final = 512
_STEP_S: Final = 0.2
_BURST: Final = 150_000
_WAIT_S: Final = 120.0
# Promised limits, which are printed next to the measured values.
MOST_US: Final = 2.0
MOST_OF_A_STEP: Final = 0.005


@dataclass(frozen=True, slots=True)
class Load:
    """Operations that were recorded at a rate, and the outcome."""

    operations: int
    outcome: Outcome
    grown_mib: float


def main() -> int:
    """Print the figures; return 1 if a promised limit is exceeded."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=int, default=50_000, help="operations a second")
    parser.add_argument("--seconds", type=float, default=10.0)
    given = parser.parse_args()
    with TemporaryDirectory(prefix="paceline-bench-") as name, _receiver() as url:
        spool = Spool(Path(name))
        operation_us = 1e6 * _seconds_each(_recorder(url, spool).op_once)
        step_share = _OPERATIONS_A_STEP * operation_us / 1e6 / _STEP_S
        steady = _steady(url, spool, given.rate, given.seconds)
        burst = _burst(url, spool)
        pulse = _pulse(url)
    print(f"an operation          {operation_us:.2f} µs (at most {MOST_US})")
    print(
        f"a step of 200 ms      {step_share:.2%} with {_OPERATIONS_A_STEP} operations "
        f"(at most {MOST_OF_A_STEP:.1%})"
    )
    for what, load in ((f"{given.rate} a second", steady), ("a burst", burst)):
        print(
            f"{what:<21} {load.operations} operations, {load.outcome.dropped} dropped, "
            f"memory grew by {load.grown_mib:.0f} MiB"
        )
    kept = operation_us <= MOST_US and step_share <= MOST_OF_A_STEP
    return int(not (kept and pulse) or steady.outcome.dropped > 0 or burst.outcome.dropped > 0)


def _pulse(url: str) -> bool:
    """Print the cost of the pulse if PyTorch is installed; return whether it is within limits."""
    if importlib.util.find_spec("torch") is None:
        print("the pulse             not measured: there is no PyTorch (make install-real-jobs)")
        return True
    from benchmarks.client_pulse import measure  # noqa: PLC0415 - imports PyTorch

    return measure(url)


@dataclass(slots=True)
class _Job:
    """A rank's recorder, and the next operation that it records."""

    recorder: Recorder
    number: int = 0

    def op_once(self) -> None:
        """Record one operation, as hooks do."""
        number = self.number
        self.number = number + 1
        self.recorder.op(
            0,
            "forward-compute",
            1_760_000_000_000_000_000 + 1_000 * number,
            900,
            step=number // _OPERATIONS_A_STEP,
            dp=0,
            pp=0,
            mb=number % 32,
        )

    def end(self) -> Outcome:
        """Send the recorded operations, and return the outcome."""
        self.recorder.finish()
        outcome = self.recorder.wait(_WAIT_S)
        if outcome is None or outcome.error is not None:
            message = f"not delivered: {outcome}"
            raise RuntimeError(message)
        return outcome


def _recorder(url: str, spool: Spool) -> _Job:
    share = Share(session=time.monotonic_ns() % 1_000_000_000 + 1, producer="rank-0")
    retry = RetryPolicy(give_up_after_s=10)
    return _Job(Recorder(url, "bench", _META, share=share, spool=spool, retry=retry))


def _seconds_each(record: Callable[[], None]) -> float:
    """Return the smallest time of an operation on the training's thread, s."""
    best = float("inf")
    for _ in range(_ROUNDS):
        began = time.thread_time()
        for _ in range(_ROUND):
            record()
        best = min(best, (time.thread_time() - began) / _ROUND)
        # The sender's thread empties its queue between rounds.
        time.sleep(0.1)
    return best


def _steady(url: str, spool: Spool, rate: int, seconds: float) -> Load:
    before = _memory_mib()
    job = _recorder(url, spool)
    began = time.monotonic()
    while (elapsed := time.monotonic() - began) < seconds:
        while job.number < rate * elapsed:
            job.op_once()
        time.sleep(0.001)
    outcome = job.end()
    return Load(job.number, outcome, _memory_mib() - before)


def _burst(url: str, spool: Spool) -> Load:
    before = _memory_mib()
    job = _recorder(url, spool)
    for _ in range(_BURST):
        job.op_once()
    outcome = job.end()
    return Load(_BURST, outcome, _memory_mib() - before)


def _memory_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


class _Accepting(BaseHTTPRequestHandler):
    """HTTP handler that accepts every request."""

    def do_PUT(self) -> None:
        self.rfile.read(int(self.headers["Content-Length"]))
        answer = b'{"session": "bench", "url": "/", "attempt": 1, "pulse_s": 5}'
        self.send_response(202)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_PUT  # noqa: N815 - name of the library

    def log_message(self, *_: object) -> None:
        """Suppress the log of requests."""


@contextmanager
def _receiver() -> Iterator[str]:
    """Run a receiver on a free port of this machine, and yield its address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Accepting)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


if __name__ == "__main__":
    raise SystemExit(main())
