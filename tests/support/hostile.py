"""Functions that a body of a stranger might run a reader into; called in killable processes."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from app.errors import Fault, InvalidTraceError
from tests.support.equal_hashes import equal_hashes


def arrays(count: int) -> dict[str, NDArray[np.int64]]:
    return {"values": np.arange(count), "more": np.arange(count) * 2}


def refuse() -> None:
    raise InvalidTraceError("no", code="trace.no", faults=(Fault("no", "no", row=3),))


def fail() -> None:
    raise KeyError("a bug")


def hold_the_interpreter(marker: Path | None = None) -> int:
    """Compute in C code, without a turn for any other thread, for hours."""
    if marker is not None:
        marker.write_text(str(os.getpid()))
    return len(dict.fromkeys(equal_hashes(3_000_000)))


def wait(marker: Path) -> None:
    marker.write_text(str(os.getpid()))
    time.sleep(600)


def fill_memory() -> int:
    return len(bytearray(1 << 30))


def die(marker: Path, times: int) -> int:
    """Die as by the kernel's killer, the first `times` times; return the number of this time."""
    with marker.open("a") as file:
        file.write("x")
    if marker.stat().st_size <= times:
        os.kill(os.getpid(), signal.SIGKILL)
    return marker.stat().st_size


def content(path: Path) -> bytes:
    return path.read_bytes()


def process() -> int:
    return os.getpid()
