"""Diagnostics of a host's ranks while no step ends, and the states of silent processes."""

from __future__ import annotations

import itertools
import json
import math
import os
import signal
import subprocess
import sys

import pytest

from app.hangs.files import read_process
from paceline_client.pulse.host import HangDiagnostics
from tests.support.waiting import wait_for

BEAT_S = 5.0


# Times in seconds, a minute apart.
MINUTES = itertools.count(1000.0, 60.0)


def silent(standing: HangDiagnostics) -> dict[int, str]:
    """Return the state of each process by rank, long after its last message."""
    told = standing.silent(next(MINUTES), BEAT_S)
    states = {}
    for name, text in told.items():
        rank = int(name.removeprefix("process_").removesuffix(".json"))
        states[rank] = read_process(text.encode()).state
    return states


def test_own_stacks_are_sent_once_a_minute() -> None:
    standing = HangDiagnostics(lambda: {"stack_0.json": "[]"})
    assert [bool(standing.own(at_s, BEAT_S)) for at_s in (0.0, 5.0, 59.0, 60.0)] == [
        *(True, False, False, True)
    ]


def test_stopped_killed_and_replaced_processes_are_distinguished() -> None:
    standing = HangDiagnostics(dict)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        standing.seen(3, process.pid, 0.0)
        assert silent(standing)[3] in {"D", "R", "S"}
        process.send_signal(signal.SIGSTOP)
        wait_for(lambda: silent(standing)[3] == "T", "it is stopped")
        process.kill()
        wait_for(lambda: silent(standing)[3] == "Z", "it has ended")
    assert silent(standing) == {3: ""}


def test_an_unchanged_state_of_a_process_is_sent_once_a_minute() -> None:
    standing = HangDiagnostics(dict)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        standing.seen(3, process.pid, 0.0)
        process.kill()
        process.wait()
        said = [bool(standing.silent(at_s, BEAT_S)) for at_s in (1000.0, 1005.0, 1059.0, 1060.0)]
    assert said == [True, False, False, True]


def test_ranks_that_were_heard_lately_or_are_not_to_be_seen_are_left_alone() -> None:
    standing = HangDiagnostics(dict)
    standing.seen(1, os.getpid(), math.inf)
    standing.seen(2, 1 << 30, 0.0)
    assert silent(standing) == {}


def test_a_job_that_keeps_it_to_itself_says_nothing_of_others() -> None:
    standing = HangDiagnostics(None)
    standing.seen(1, os.getpid(), 0.0)
    assert (silent(standing), standing.own(0.0, BEAT_S)) == ({}, {})


@pytest.mark.skipif(sys.platform != "linux", reason="there is /proc on Linux only")
def test_the_place_where_a_process_waits_is_sent_if_the_kernel_shows_it() -> None:
    standing = HangDiagnostics(dict)
    standing.seen(1, os.getpid(), 0.0)
    (text,) = standing.silent(1000.0, BEAT_S).values()
    assert json.loads(text)["process"].keys() == {"pid", "state", "wait_channel"}
