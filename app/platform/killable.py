"""Run functions on bytes of strangers in processes that the kernel kills at a limit.

A parser that a hostile body holds in a loop of C code answers to no exception and to no thread of
its process. Calls therefore run in other processes, which a template process forks: the template
has loaded the readers and has a single thread, so that a fork takes milliseconds. A process takes
one call at a time, and further calls until one is killed. The kernel enforces every limit without
the help of the process:

- processor time, in proportion to the size of the body: ``ITIMER_PROF``;
- time on the clock: ``ITIMER_REAL``;
- memory: `limited_memory`;
- the caller: its end of a socket closes when it gives up or dies, which sends ``SIGIO`` (Linux).

None of these signals has a handler, so that each ends the process at once. Arguments and results
are pickles in memory that both processes map; arrays of a result are not copied.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import gc
import importlib
import io
import mmap
import os
import pickle  # the bytes are those of our own processes
import selectors
import signal
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, Final, Generic, NoReturn, TypeVar

import structlog

from app.errors import PacelineError
from app.platform.resources import limited_memory, loading

T = TypeVar("T")

_log = structlog.get_logger(__name__)

_MIB: Final = 1024 * 1024
# Tries of a call whose process was killed by something else than its own limits.
TRIES: Final = 2
# Processor seconds of a call, for any body and for each MiB of the body. The slowest reader takes
# about a second for each MiB.
BASE_CPU_S: Final = 10.0
CPU_S_PER_MIB: Final = 10.0
MOST_CPU_S: Final = 900.0
# Seconds on the clock for each processor second, on a machine with too few processors.
CLOCK_RATIO: Final = 4.0
# Calls after which a process is replaced, and bytes of arguments or of a result after which it is
# replaced at once: it keeps memory that it has used.
MOST_CALLS: Final = 64
LARGE_BYTES: Final = 32 * _MIB
# Processes without a call that are kept for the next ones.
MOST_IDLE: Final = 4
# Time in which the template process reports a process that the kernel has killed.
_GRACE_S: Final = 10.0

# Names of the modules to load, and of a function to call, in the template process before a fork.
_FORK: Final = struct.Struct("<200s")
# Processor seconds, seconds on the clock, KiB of memory, bytes of the pickle.
_REQUEST: Final = struct.Struct("<ddqq")
_PROGRAM: Final = "from app.platform.killable import main; main()"
_STATUS: Final = struct.Struct("<i")
_RESULT: Final = struct.Struct("<qq")
_SIZE: Final = struct.Struct("<q")
_ALIGNED: Final = 64
_TIME_SIGNALS: Final = frozenset({signal.SIGPROF, signal.SIGALRM})
_TOO_MUCH_MEMORY: Final = 3
_VALUE, _ERROR, _BROKEN = range(3)
# Libraries start a pool of threads, of a size in these variables; the template process must have
# none when it forks.
_SINGLE_THREADED: Final = (
    *("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"),
    *("VECLIB_MAXIMUM_THREADS", "NUMEXPR_NUM_THREADS", "NUMBA_NUM_THREADS"),
)


MEMORY_LIMIT: Final = "body.memory_limit"


class ReadLimitError(PacelineError):
    """Reading a body took more time or memory than a body of its size may take."""

    code = "body.time_limit"


@dataclass(frozen=True, slots=True)
class Allowance:
    """Limits of one call."""

    cpu_s: float
    memory_kib: int

    @property
    def clock_s(self) -> float:
        """Return the limit of the time on the clock in seconds."""
        return CLOCK_RATIO * self.cpu_s


def allowance(size: int, memory_kib: int) -> Allowance:
    """Return the limits for reading a body of `size` bytes."""
    cpu_s = min(MOST_CPU_S, BASE_CPU_S + CPU_S_PER_MIB * size / _MIB)
    return Allowance(cpu_s, memory_kib)


@dataclass(frozen=True, slots=True)
class _Reader:
    """The caller's end of the socket of a process, and the number of its calls."""

    socket: socket.socket
    prepare: str
    calls: int


class Call(Generic[T]):
    """A call that runs in another process, which is killed when the call is closed before its end.

    Parameters
    ----------
    function : callable
        A function of a module that the template process can import.
    limits : Allowance
    prepare : str
        Names of modules, and after a colon of a function, that the template process loads and calls
        once: ``app.hangs.files,app.some.module:warm_up``.
    """

    def __init__(
        self,
        function: Callable[..., T],
        *arguments: object,
        limits: Allowance,
        prepare: str = "",
    ) -> None:
        self._limits = limits
        self._request, self._files = _pickled((function, arguments))
        self._prepare = _preparation(function, prepare)
        self._reader: _Reader | None = None
        self._memory = -1
        self._begin()

    def _begin(self) -> None:
        limits = self._limits
        self._memory = _anonymous_file()
        try:
            _write(self._memory, self._request)
            self._reader = _reader(self._prepare)
            request = _REQUEST.pack(
                limits.cpu_s, limits.clock_s, limits.memory_kib, len(self._request)
            )
            # A process that was killed while it had no call is noticed when the call waits for it.
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                socket.send_fds(self._reader.socket, [request], [self._memory, *self._files])
        except BaseException:
            self.close()
            raise

    def result(self) -> T:
        """Return the function's value, or raise its error.

        Raises
        ------
        ReadLimitError
            ``body.time_limit``, ``body.memory_limit``; ``body.reader_killed``: the process was
            killed in each of two tries.
        """
        for left in reversed(range(TRIES)):
            status = self._wait()
            if status == 0:
                return self._value()
            self.close()
            if -status in _TIME_SIGNALS:
                raise ReadLimitError(
                    f"Reading the body took over {self._limits.cpu_s:.0f} s, more than bodies of "
                    "its size may take."
                )
            if status == _TOO_MUCH_MEMORY:
                raise ReadLimitError(
                    f"The body did not fit into {self._limits.memory_kib / 1024:,.0f} MiB when it "
                    "was read: send it in smaller parts.",
                    code=MEMORY_LIMIT,
                )
            _log.warning("reading process killed", status=status)
            if left:
                self._begin()
        raise ReadLimitError(
            f"The process that read the body was killed in each of {TRIES} tries; most often that "
            "means that it ran out of memory.",
            code="body.reader_killed",
        )

    def close(self) -> None:
        """Kill the process, if it has not ended the call; a second close does nothing."""
        if self._memory >= 0:
            os.close(self._memory)
            self._memory = -1
        if self._reader is not None:
            self._reader.socket.close()
            self._reader = None

    def _wait(self) -> int:
        """Return the status of the call or of its process; a signal that killed it is negative."""
        if self._reader is None:
            raise RuntimeError("the call is closed")
        self._reader.socket.settimeout(self._limits.clock_s + _GRACE_S)
        try:
            status = self._reader.socket.recv(_STATUS.size)
        except TimeoutError:
            return -signal.SIGALRM
        except OSError:
            status = b""
        return _STATUS.unpack(status)[0] if len(status) == _STATUS.size else -signal.SIGKILL

    def _value(self) -> T:
        mapped = memoryview(mmap.mmap(self._memory, 0, access=mmap.ACCESS_COPY))
        if len(self._request) <= LARGE_BYTES >= len(mapped):
            _keep(self._reader)
            self._reader = None
        self.close()
        length, count = _RESULT.unpack_from(mapped)
        sizes = struct.unpack_from(f"<{count}q", mapped, _RESULT.size)
        at = _RESULT.size + count * _SIZE.size
        body, at = mapped[at : at + length], at + length
        buffers = []
        for size in sizes:
            at += -at % _ALIGNED
            buffers.append(mapped[at : at + size])
            at += size
        kind, value = pickle.loads(body, buffers=buffers)  # noqa: S301 - of our own process
        if kind == _ERROR:
            raise value
        if kind == _BROKEN:
            raise RuntimeError(f"the reading process failed:\n{value}")
        result: T = value
        return result


def start(function: Callable[..., object], prepare: str = "") -> None:
    """Start a process for the first call of a function, which loads its modules meanwhile."""
    _keep(_reader(_preparation(function, prepare)))


def _preparation(function: Callable[..., object], prepare: str) -> str:
    return ",".join(name for name in (function.__module__, prepare) if name)


def call(function: Callable[..., T], *arguments: object, limits: Allowance, prepare: str = "") -> T:
    """Call a function in a process of its own; parameters and errors are those of `Call`."""
    with contextlib.closing(Call(function, *arguments, limits=limits, prepare=prepare)) as underway:
        return underway.result()


class _Template:
    """The template process of this process, which forks a process for each call."""

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            self._process = subprocess.Popen(  # noqa: S603 - our own argument list
                [sys.executable, "-c", _PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                env=os.environ | dict.fromkeys(_SINGLE_THREADED, "1"),
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        self._control = ours
        self._lock = threading.Lock()

    @property
    def pid(self) -> int:
        return self._process.pid

    def alive(self) -> bool:
        return self._process.poll() is None

    def fork(self, prepare: str) -> socket.socket:
        """Fork a process; return the caller's end of its socket."""
        ours, theirs = socket.socketpair()
        try:
            with theirs, self._lock:
                socket.send_fds(self._control, [_FORK.pack(prepare.encode())], [theirs.fileno()])
        except BaseException:
            ours.close()
            raise
        return ours

    def forget(self) -> None:
        """Close this process's end of the socket: the template process ends with the last one."""
        self._control.close()

    def end(self) -> None:
        """Kill and reap the template process."""
        self._process.kill()
        self._process.wait()


_lock: threading.Lock = threading.Lock()
_running: _Template | None = None
_idle: list[_Reader] = []


def _reader(prepare: str) -> _Reader:
    """Return a process without a call, or a new one."""
    with _lock:
        # The process of the latest call first: its memory is in the caches.
        for place in reversed(range(len(_idle))):
            if _idle[place].prepare == prepare:
                return _idle.pop(place)
    try:
        forked = _template().fork(prepare)
    except (BrokenPipeError, ConnectionResetError):
        # The template process was killed meanwhile.
        forked = _template().fork(prepare)
    return _Reader(forked, prepare, 0)


def _template() -> _Template:
    """Return the template process; start another one if it has ended."""
    global _running  # noqa: PLW0603 - one for each process
    with _lock:
        if _running is not None and not _running.alive():
            _running.forget()
            _running = None
        if _running is None:
            _running = _Template()
        return _running


def _keep(reader: _Reader | None) -> None:
    """Keep a process that has ended its call for the next one, or end it."""
    if reader is None:
        return
    with _lock:
        if reader.calls + 1 < MOST_CALLS and len(_idle) < MOST_IDLE:
            _idle.append(_Reader(reader.socket, reader.prepare, reader.calls + 1))
            return
    reader.socket.close()


def _forget() -> None:
    """Leave all processes to the parent, in a process that was just forked."""
    global _running, _lock  # noqa: PLW0603 - one for each process
    _lock = threading.Lock()
    for reader in _idle:
        reader.socket.close()
    _idle.clear()
    if _running is not None:
        _running.forget()
        _running = None


def end() -> None:
    """End the processes without a call and the template process; the next call starts others."""
    with _lock:
        if _running is not None:
            _running.end()
    _forget()


os.register_at_fork(after_in_child=_forget)
atexit.register(end)


# Start of the path of an open file of this process, such as a spooled body without a name.
_OPEN_FILE: Final = "/dev/fd/"
# Limit of the open files in the arguments of a call.
_MOST_FILES: Final = 8


def _pickled(value: object) -> tuple[bytes, list[int]]:
    """Return the pickle of a value, and the open files of this process whose paths are in it."""
    files: list[int] = []

    class Pickler(pickle.Pickler):
        def reducer_override(self, item: object) -> Any:  # noqa: ANN401 - as in the base class
            if not isinstance(item, PurePath) or not str(item).startswith(_OPEN_FILE):
                return NotImplemented
            files.append(int(item.name))
            return _received_file, (len(files) - 1,)

    target = io.BytesIO()
    Pickler(target, 5).dump(value)
    return target.getvalue(), files


def _received_file(place: int) -> Path:
    """Return the path, in a reading process, of an open file that its caller has sent."""
    return Path(f"{_OPEN_FILE}{_received[place]}")


_received: list[int] = []


def _anonymous_file() -> int:
    """Return the descriptor of a file without a name, in memory where the system can."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("paceline-read")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())


def _write(file: int, *pieces: bytes | memoryview) -> None:
    os.ftruncate(file, 0)
    os.lseek(file, 0, os.SEEK_SET)
    for piece in pieces:
        left = memoryview(piece).cast("B")
        while left:
            left = left[os.write(file, left) :]


# What follows runs in the template process and in the processes that it forks.


def _serve(control: socket.socket) -> NoReturn:
    """Fork a process for each request, and report how it ended, until the caller's end closes."""
    statuses: dict[int, socket.socket] = {}
    prepared: set[str] = set()
    wake_read, wake_write = os.pipe()
    os.set_blocking(wake_read, False)
    os.set_blocking(wake_write, False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(wake_write)
    with selectors.DefaultSelector() as ready:
        ready.register(control, selectors.EVENT_READ)
        ready.register(wake_read, selectors.EVENT_READ)
        while True:
            for key, _ in ready.select():
                if key.fileobj is control:
                    request, files, _, _ = socket.recv_fds(control, _FORK.size, 1)
                    if len(request) < _FORK.size:
                        os._exit(0)
                    _fork(request, files[0], statuses, prepared)
                else:
                    os.read(wake_read, 4096)
            _report(statuses)


def _fork(
    request: bytes, file: int, statuses: dict[int, socket.socket], prepared: set[str]
) -> None:
    caller = socket.socket(fileno=file)
    (names,) = _FORK.unpack(request)
    for name in names.rstrip(b"\0").decode().split(","):
        if name not in prepared:
            prepared.add(name)
            _prepare(name)
    pid = os.fork()
    if pid:
        statuses[pid] = caller
        return
    try:
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        for other in statuses.values():
            other.close()
        _take_calls(caller)
    finally:
        os._exit(1)


def _prepare(name: str) -> None:
    """Load a module, and call the function whose name follows a colon."""
    module, _, function = name.partition(":")
    loaded = importlib.import_module(module)
    if function:
        getattr(loaded, function)()
    # Objects that the collector does not visit are shared with the forked processes.
    gc.collect()
    gc.freeze()


def _take_calls(caller: socket.socket) -> NoReturn:
    """Run the calls of a caller, one after the other, until the caller's end closes."""
    if sys.platform == "linux":
        fcntl.fcntl(caller, fcntl.F_SETOWN, os.getpid())
    plain = fcntl.fcntl(caller, fcntl.F_GETFL)
    while True:
        request, files, _, _ = socket.recv_fds(caller, _REQUEST.size, 1 + _MOST_FILES)
        if len(request) < _REQUEST.size:
            os._exit(0)
        cpu_s, clock_s, memory_kib, size = _REQUEST.unpack(request)
        # From here on, the kernel ends this process at the limits, and when the caller's end
        # closes.
        signal.setitimer(signal.ITIMER_PROF, cpu_s)
        signal.setitimer(signal.ITIMER_REAL, clock_s)
        fcntl.fcntl(caller, fcntl.F_SETFL, plain | os.O_ASYNC)
        with contextlib.suppress(BlockingIOError):
            # The caller's end may have closed before.
            if not caller.recv(1, socket.MSG_DONTWAIT):
                os._exit(0)
        _received[:] = files[1:]
        code = _run(files[0], size, memory_kib)
        for file in files:
            os.close(file)
        fcntl.fcntl(caller, fcntl.F_SETFL, plain)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.setitimer(signal.ITIMER_PROF, 0.0)
        caller.send(_STATUS.pack(code))


def _run(memory: int, size: int, memory_kib: int) -> int:
    """Call the function of the request in `memory`, and write the outcome there."""
    buffers: list[pickle.PickleBuffer] = []
    try:
        with limited_memory(memory_kib):
            with mmap.mmap(memory, size, access=mmap.ACCESS_READ) as request:
                function, arguments = pickle.loads(request)  # noqa: S301 - of our own process
            outcome: tuple[int, Any]
            try:
                outcome = _VALUE, function(*arguments)
            except PacelineError as error:
                outcome = _ERROR, error
            except MemoryError:
                raise
            except Exception:  # noqa: BLE001 - the caller raises it
                outcome = _BROKEN, traceback.format_exc()
            body = pickle.dumps(outcome, 5, buffer_callback=buffers.append)
            raws = [buffer.raw() for buffer in buffers]
            sizes = struct.pack(f"<{len(raws)}q", *(raw.nbytes for raw in raws))
            pieces: list[bytes | memoryview] = [_RESULT.pack(len(body), len(raws)), sizes, body]
            at = sum(map(len, pieces))
            for raw in raws:
                pieces += [bytes(-at % _ALIGNED), raw]
                at += -at % _ALIGNED + raw.nbytes
            _write(memory, *pieces)
    except MemoryError:
        return _TOO_MUCH_MEMORY
    return 0


def _report(statuses: dict[int, socket.socket]) -> None:
    """Send the exit statuses of processes that have ended to their callers."""
    while statuses:
        pid, ended = os.waitpid(-1, os.WNOHANG)
        if not pid:
            return
        with statuses.pop(pid) as status, contextlib.suppress(OSError):
            status.send(_STATUS.pack(os.waitstatus_to_exitcode(ended)))


def main() -> NoReturn:
    """Run as the template process; the argument is the descriptor of the control socket."""
    # A terminal sends SIGINT to all its processes; the caller's socket tells when to end.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with loading():
        import numpy as np  # noqa: F401, PLC0415
    _serve(socket.socket(fileno=int(sys.argv[1])))
