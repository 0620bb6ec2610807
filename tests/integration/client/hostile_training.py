"""Train with the client attached to servers that answer in every hostile way.

``hostile_training.py URL DIRECTORY KIND…``: trains without the client, then once with the server of
each kind, whose address is ``URL/KIND``, and writes ``result.json``: for each training its losses,
the growth of memory in bytes, and the seconds of `Monitor.close`. With a single kind, the client
closes itself at the process's exit, whose seconds are ``exit_s``.
"""

from __future__ import annotations

import atexit
import gc
import json
import os
import re
import sys
import time
from pathlib import Path
from typing import Any

import torch

import paceline_client.torch as paceline
from paceline_client import RetryPolicy
from tests.integration.client.training import Loop

STEPS = 12
# Time limits of a training of which one follows another; at the exit the usual ones hold.
CLOSE_S = 0.5
POLICY = RetryPolicy(give_up_after_s=0.3, first_wait_s=0.05, longest_wait_s=0.1, timeout_s=0.3)


def memory(name: str) -> int:
    """Return a figure of this process's memory in bytes, such as ``VmRSS``."""
    match = re.search(rf"{name}:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert match is not None
    return int(match[1]) << 10


def train(url: str | None, *, close: bool) -> dict[str, Any]:
    job = Loop("plain", 0, 1)
    gc.collect()
    # Resets the peak of the memory.
    Path("/proc/self/clear_refs").write_text("5")
    before = memory("VmRSS")
    monitor = None
    if url is not None:
        how: dict[str, Any] = {"retry": POLICY} if close else {}
        budget = paceline.RecordBudget(share=1.0, every_s=0.0)
        monitor = job.attach(url, every=None, warmup=0, record=budget, **how)
        monitor.record(4, at=2)
    losses = []
    for number in range(STEPS):
        losses.append(job.step(number).hex())
        time.sleep(0.03)
        if monitor is not None:
            monitor.step()
    began_s = time.monotonic()
    if monitor is not None and close:
        monitor.close(CLOSE_S)
    closed_s = time.monotonic() - began_s
    return {"losses": losses, "grown": memory("VmHWM") - before, "closed_s": closed_s}


def main() -> None:
    url, directory, *kinds = sys.argv[1:]
    os.environ["PACELINE_PULSE_S"] = "0.05"
    os.environ["PACELINE_SPOOL"] = f"{directory}/spool"
    torch.set_num_threads(1)
    train(None, close=True)  # PyTorch allocates memory in the first steps
    result = {"": train(None, close=True)}
    ended_s: list[float] = []

    def write() -> None:
        exit_s = time.monotonic() - ended_s[0]
        document = {"trainings": result, "exit_s": exit_s}
        Path(directory, "result.json").write_text(json.dumps(document))

    # Exit handlers run in reverse order, this one after the client's.
    atexit.register(write)
    for kind in kinds:
        result[kind] = train(f"{url}/{kind}", close=len(kinds) > 1)
    ended_s.append(time.monotonic())


if __name__ == "__main__":
    main()
