"""Readers of strangers' bytes run in processes that end at every limit, and with their caller."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from app.errors import Fault, InvalidTraceError
from app.platform import killable
from app.platform.killable import Allowance, Call, ReadLimitError, allowance, call
from tests.support import hostile

ENOUGH: Final = Allowance(cpu_s=60.0, memory_kib=1 << 20)
LITTLE: Final = Allowance(cpu_s=0.5, memory_kib=1 << 20)
_PATIENCE_S: Final = 60.0


def is_gone(pid: int) -> bool:
    """Return whether a process has ended; its parent may not have reaped it."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return True
    return state == "Z"


def wait_until_gone(pid: int) -> None:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not is_gone(pid):
        assert time.monotonic() < deadline_s, f"process {pid} still runs"
        time.sleep(0.02)


def pid_in(marker: Path) -> int:
    deadline_s = time.monotonic() + _PATIENCE_S
    while not (marker.exists() and marker.read_text()):
        assert time.monotonic() < deadline_s
        time.sleep(0.02)
    return int(marker.read_text())


def test_a_value_with_arrays_comes_back() -> None:
    arrays = call(hostile.arrays, 1000, limits=ENOUGH)
    np.testing.assert_array_equal(arrays["more"], np.arange(1000) * 2)
    arrays["values"][0] = 7


def test_an_error_comes_back_with_its_code_and_place() -> None:
    with pytest.raises(InvalidTraceError) as caught:
        call(hostile.refuse, limits=ENOUGH)
    assert caught.value.stable_code == "trace.no"
    assert caught.value.faults == (Fault("no", "no", row=3),)


def test_a_bug_comes_back_with_its_place() -> None:
    with pytest.raises(RuntimeError, match=r"in fail\n(.|\n)*KeyError: 'a bug'"):
        call(hostile.fail, limits=ENOUGH)


def test_an_open_file_without_a_name_is_passed_on() -> None:
    with tempfile.TemporaryFile() as file:
        file.write(b"of a stranger")
        file.flush()
        path = Path(f"/dev/fd/{file.fileno()}")
        assert call(hostile.content, path, limits=ENOUGH) == b"of a stranger"


def test_a_process_takes_several_calls() -> None:
    first = call(hostile.process, limits=ENOUGH)
    assert first != os.getpid()
    assert call(hostile.process, limits=ENOUGH) == first


def test_what_holds_the_interpreter_is_killed_and_the_next_call_works(tmp_path: Path) -> None:
    marker = tmp_path / "pid"
    with pytest.raises(ReadLimitError) as caught:
        call(hostile.hold_the_interpreter, marker, limits=LITTLE)
    assert caught.value.stable_code == "body.time_limit"
    wait_until_gone(pid_in(marker))
    assert call(hostile.process, limits=ENOUGH) != pid_in(marker)


def test_what_waits_is_killed_by_the_clock(tmp_path: Path) -> None:
    with pytest.raises(ReadLimitError) as caught:
        call(hostile.wait, tmp_path / "pid", limits=Allowance(0.2, 1 << 20))
    assert caught.value.stable_code == "body.time_limit"
    wait_until_gone(pid_in(tmp_path / "pid"))


def test_memory_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ReadLimitError) as caught:
        call(hostile.fill_memory, limits=Allowance(60.0, 100 * 1024))
    assert caught.value.stable_code == "body.memory_limit"


@pytest.mark.parametrize(("times", "outcome"), [(1, "2"), (2, "body.reader_killed")])
def test_a_killed_process_is_replaced_once(tmp_path: Path, times: int, outcome: str) -> None:
    marker = tmp_path / "tries"
    try:
        result = str(call(hostile.die, marker, times, limits=ENOUGH))
    except ReadLimitError as error:
        result = error.stable_code
    assert (result, marker.read_text()) == (outcome, "xx")


def test_a_closed_call_ends_its_process(tmp_path: Path) -> None:
    underway = Call(hostile.hold_the_interpreter, tmp_path / "pid", limits=ENOUGH)
    pid = pid_in(tmp_path / "pid")
    assert not is_gone(pid)
    underway.close()
    wait_until_gone(pid)


def test_a_killed_template_process_is_replaced() -> None:
    call(hostile.process, limits=ENOUGH)
    template = killable._running
    assert template is not None
    os.kill(template.pid, signal.SIGKILL)
    wait_until_gone(template.pid)
    # Processes that the template has forked serve on; another function's modules need a new one.
    assert call(hostile.process, limits=ENOUGH)
    assert call(hostile.process, limits=ENOUGH, prepare="json")
    assert killable._running is not template


def test_a_process_that_was_killed_between_calls_is_replaced() -> None:
    before = call(hostile.process, limits=ENOUGH)
    os.kill(before, signal.SIGKILL)
    wait_until_gone(before)
    assert call(hostile.process, limits=ENOUGH) != before


def test_threads_call_at_once() -> None:
    with ThreadPoolExecutor(8) as threads:
        sums = threads.map(
            lambda number: int(call(hostile.arrays, number, limits=ENOUGH)["values"].sum()),
            range(40),
        )
    assert list(sums) == [number * (number - 1) // 2 for number in range(40)]


def test_a_forked_process_has_its_own(tmp_path: Path) -> None:
    before = call(hostile.process, limits=ENOUGH)
    pid = os.fork()
    if not pid:
        with contextlib.suppress(BaseException):
            (tmp_path / "pid").write_text(str(call(hostile.process, limits=ENOUGH)))
        os._exit(0)
    os.waitpid(pid, 0)
    assert pid_in(tmp_path / "pid") != before
    assert call(hostile.process, limits=ENOUGH) == before


_PROGRAM: Final = """
import sys
from pathlib import Path
from app.platform import killable
from tests.support import hostile
limits = killable.Allowance(60.0, 1 << 20)
print(killable.call(hostile.process, limits=limits), killable._running.pid, flush=True)
killable.call(getattr(hostile, sys.argv[1]), Path(sys.argv[2]), limits=limits)
"""


@pytest.mark.parametrize("function", ["wait", "hold_the_interpreter"])
def test_no_process_outlives_a_killed_caller(tmp_path: Path, function: str) -> None:
    marker = tmp_path / "pid"
    with subprocess.Popen(  # noqa: S603 - our own program
        [sys.executable, "-c", _PROGRAM, function, str(marker)], stdout=subprocess.PIPE, text=True
    ) as caller:
        assert caller.stdout is not None
        pids = {*map(int, caller.stdout.readline().split()), pid_in(marker)}
        assert not any(map(is_gone, pids))
        caller.kill()
        for pid in pids:
            wait_until_gone(pid)


def test_limits_are_proportional_to_the_body_up_to_a_bound() -> None:
    small, large, largest = (allowance(mib << 20, 7) for mib in (0, 10, 10_000))
    assert large.cpu_s - small.cpu_s == 10 * killable.CPU_S_PER_MIB
    assert largest.cpu_s == killable.MOST_CPU_S
    assert large.memory_kib == 7
