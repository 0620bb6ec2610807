"""The pulse of a rank: rows of its steps, beats, and diagnostics while no step ends."""

from __future__ import annotations

import json
import logging
import math
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, Literal

import torch

from paceline_client.gpu import GpuMonitor
from paceline_client.pulse.requests import BudgetUse, RecordBudget, RecordRequest
from paceline_client.pulse.rows import Beat, Counts, Row
from paceline_client.pulse.sender import Destination, Pulse
from paceline_client.torch.layout import Layout
from paceline_client.torch.tap import COMPILE, DATA_LOADING, EVALUATION, GC, OPTIMIZER, Tap

_log = logging.getLogger("paceline_client")

RecordWhen = Literal["auto", "ask"] | RecordBudget

# Maximum number of events in a step on a GPU; each operation has two events.
_MOST_EVENTS: Final = 64
# Number of steps after which the clocks of device and host are compared again.
_STEPS_A_CLOCK: Final = 128
_FINISHED: Final = "finished"
_COMPUTE: Final = "compute"
# Maximum of innermost frames in a reported stack.
MOST_FRAMES: Final = 40
MOST_BYTES: Final = 64 << 10
# Maximum of reported pending collectives: the rank waits for the first of them, and further
# collectives are queued behind.
_FEW_ENTRIES: Final = 16


class StepRows:
    """The tap's sink for the pulse, which sums the operations of each step to one row.

    Operations inside a computation have to be added before the computation itself. All calls are on
    one thread: the training's thread on CPUs, the thread that reads events on GPUs.
    """

    def __init__(self, rank: int, layout: Layout, add: Callable[[Row], None]) -> None:
        self._place = rank, layout.dp_rank, layout.pp_rank
        self._add = add
        self._clear()

    def _clear(self) -> None:
        # Computations by type: number measured, their duration, and the duration of waits inside
        # them.
        self._computed: dict[str, list[int]] = {}
        self._inside_ns = 0  # waits inside of the computation that has not ended
        self._compiled_ns = 0  # compilations inside of the computation that has not ended
        # Waits outside of computations by type: number measured, and their duration.
        self._waited: dict[str, list[int]] = {}
        self._optimizer_ns = 0
        self._gc_ns = 0
        self._gc_outside_ns = 0
        self._first_ns: int | None = None  # start of the first operation
        # Operations that are neither computing nor waiting, as (type, start, duration)
        self._aside: list[tuple[str, int, int]] = []

    def inside(self, op: str, _start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Add an operation inside a computation."""
        if op == GC:
            self._gc_ns += duration_ns
        elif op == COMPILE:
            self._compiled_ns += duration_ns
        elif not op.endswith(_COMPUTE):
            self._inside_ns += duration_ns

    def outside(self, op: str, start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Add a computation, or an operation outside of computations."""
        if self._compiled_ns and op.endswith(_COMPUTE):
            duration_ns -= min(duration_ns, self._compiled_ns)
            self._compiled_ns = 0
        computed = self._computed.get(op)
        if computed is not None:
            computed[0] += 1
            computed[1] += duration_ns
            if self._inside_ns:
                computed[2] += self._inside_ns
                self._inside_ns = 0
            return
        if op == GC:
            self._gc_ns += duration_ns
            self._gc_outside_ns += duration_ns
            self._aside.append((op, start_ns, duration_ns))
            return
        if op == COMPILE:
            self._aside.append((op, start_ns, duration_ns))
            return
        if self._first_ns is None:
            self._first_ns = start_ns
        if op.endswith(_COMPUTE):
            self._computed[op] = [1, duration_ns, self._inside_ns]
            self._inside_ns = 0
        elif op == OPTIMIZER:
            self._optimizer_ns += duration_ns
        else:
            waited = self._waited.setdefault(op, [0, 0])
            waited[0] += 1
            waited[1] += duration_ns

    def between(self, op: str, start_ns: int, duration_ns: int, *_where: int | None) -> None:
        """Add an operation between steps."""
        self._aside.append((op, start_ns, duration_ns))

    def end(  # noqa: PLR0913, PLR0917 - the parts of a step that tap and timeline know
        self,
        step: int,
        tokens: int,
        skipped: Mapping[str, int],
        time_ns: int,
        step_ns: int,
        end_ns: int,
    ) -> None:
        """Add the row of a step.

        `skipped` are numbers of operations by type that were not measured; they count like the
        measured ones. `time_ns` is the end of the step since the epoch, `end_ns` the same by the
        clock of the operations.
        """
        compute_ns, wait_ns = self._gc_outside_ns, 0
        for op, (measured, all_ns) in self._waited.items():
            wait_ns += round((1 + skipped.get(op, 0) / measured) * all_ns)
        for op, (measured, all_ns, inside_ns) in self._computed.items():
            times = 1 + skipped.get(op, 0) / measured
            compute_ns += round(times * max(0, all_ns - inside_ns))
            wait_ns += round(times * inside_ns)
        data_ns = 0 if self._first_ns is None else max(0, self._first_ns - (end_ns - step_ns))
        evaluation_ns = 0
        for op, start_ns, duration_ns in self._aside:
            before = self._first_ns is not None and start_ns < self._first_ns
            if op == DATA_LOADING:
                data_ns += 0 if before else duration_ns
            elif before:
                data_ns -= duration_ns
            if op == EVALUATION:
                evaluation_ns += duration_ns
        rank, dp_rank, pp_rank = self._place
        row = Row(
            step,
            rank,
            dp_rank,
            pp_rank,
            time_ns,
            max(0, step_ns - evaluation_ns),
            compute_ns,
            wait_ns,
            max(0, data_ns),
            self._optimizer_ns,
            self._gc_ns,
            tokens,
        )
        self._clear()
        self._add(row)


def training_stack(thread: int) -> bytes:
    """Return the stack of a thread as JSON, in the format of ``py-spy dump --json``.

    It has functions, files and lines, and no values.

    Examples
    --------
    >>> import threading
    >>> (stack,) = json.loads(training_stack(threading.get_ident()))
    >>> stack["frames"][0]["name"], stack["thread_name"]
    ('training_stack', 'MainThread')
    """
    frames: list[dict[str, Any]] = []
    frame = sys._current_frames().get(thread)
    while frame is not None and len(frames) < MOST_FRAMES:
        code = frame.f_code
        name = getattr(code, "co_qualname", code.co_name)
        frames.append({"name": name, "filename": code.co_filename, "line": frame.f_lineno})
        frame = frame.f_back
    stack = {"pid": os.getpid(), "thread_name": "MainThread", "frames": frames}
    return json.dumps([stack], separators=(",", ":")).encode()


def pending_collectives() -> bytes | None:
    """Return the pending collectives in PyTorch's flight recorder as JSON; None without one.

    The recorder is that of NCCL or of another backend. One completed entry of each group is kept,
    because the recorder lists sequence numbers by group, and only entries have the group's name.
    """
    c10d = torch._C._distributed_c10d
    dump = getattr(c10d, "_dump_nccl_trace_json", None) if torch.cuda.is_available() else None
    dump = dump or getattr(c10d, "_dump_fr_trace_json", None)
    if dump is None:
        return None
    try:
        document = json.loads(dump(includeCollectives=True, onlyActive=False))
    except (RuntimeError, ValueError) as error:
        _log.debug("the flight recorder has no dump: %s", error)
        return None
    entries = document.get("entries", [])
    pending = [entry for entry in entries if not entry.get("retired")]
    completed = list(
        {entry.get("pg_id"): entry for entry in entries if entry.get("retired")}.values()
    )
    for count in (len(pending), _FEW_ENTRIES, 1):
        kept = completed + pending[:count]
        body = json.dumps({**document, "entries": kept}, separators=(",", ":")).encode()
        if len(body) <= MOST_BYTES:
            return body
    return None


class RankPulse:
    """Sums each step of a rank to a row, and sends the rows on a thread.

    `gpu` reads the state of its GPU. The server may request sessions within the budget `record`
    (``"auto"`` is the default one), or not at all (``"ask"``). With `stacks`, while no step ends
    and the server requests it, the rank reports the stack of the training thread and the pending
    collectives, without waiting for the training's threads or for other ranks.
    """

    def __init__(  # noqa: PLR0913 - the parts of a rank
        self,
        tap: Tap,
        destination: Destination,
        layout: Layout,
        record: RecordWhen,
        *,
        stacks: bool = True,
        gpu: GpuMonitor | None = None,
    ) -> None:
        self._tap = tap
        self._gpu = gpu
        self._place = destination.rank, layout.dp_rank, layout.pp_rank
        self._training_thread = threading.get_ident()
        self._pulse = Pulse(
            destination,
            self._beat,
            self._record_if_allowed,
            self._diagnostics if stacks else None,
            self._read_gpu,
        )
        self._rows = StepRows(destination.rank, layout, self._pulse.add)
        self._budget: BudgetUse | None = None
        if isinstance(record, RecordBudget):
            self._budget = BudgetUse(record)
        elif record == "auto":
            self._budget = BudgetUse(RecordBudget())
        elif record != "ask":
            message = f'record must be "auto", "ask" or a RecordBudget, not {record!r}'
            raise ValueError(message)
        self._record: Callable[[RecordRequest], bool] = lambda _: False

    @property
    def wanted(self) -> bool:
        """False once the server has answered that it accepts no pulses."""
        return self._pulse.wanted

    @property
    def counts(self) -> Counts:
        """The numbers of rows, see `Counts`."""
        return self._pulse.counts

    def start(self, record: Callable[[RecordRequest], bool]) -> None:
        """Start the pulse; its thread calls `record` with each request for a session."""
        self._record = record
        self._tap.pulse = self._rows
        self._pulse.start()

    def end_step(self, tokens: int | None) -> None:
        """End the current step."""
        tap = self._tap
        self._training_thread = threading.get_ident()
        skipped, tap.skipped = tap.skipped, {}
        counted, tap.tokens = tap.tokens, 0
        step_tokens = int(counted if tokens is None else tokens)
        operations = tap.end_step(partial(self._rows.end, tap.step, step_tokens, skipped))
        if tap.sink is not None:
            return
        if operations:
            # Measure only one of `every` microbatches, so that a step has few events; each
            # operation has two events.
            every = max(1, math.ceil(2 * operations * tap.every / _MOST_EVENTS))
            # A slightly smaller number of events does not justify a change.
            if every > tap.every or 2 * every <= tap.every:
                tap.every = every
        if tap.step % _STEPS_A_CLOCK == 0:
            tap.timeline.begin()

    def end(self, give_up_at_s: float, *, finished: bool) -> None:
        """Begin to send the remaining rows, and whether the job has `finished`; returns at once."""
        self._tap.pulse = None
        self._pulse.end(give_up_at_s, finished=finished)

    def wait(self, give_up_at_s: float) -> None:
        """Wait until the remaining rows are sent."""
        self._pulse.wait(give_up_at_s)

    def forked(self) -> None:
        """Stop sending in a forked child."""
        self._tap.pulse = None
        self._pulse.forked()

    def _beat(self, finished: bool) -> Beat | None:  # noqa: FBT001 - called by the thread
        tap = self._tap
        now_ns, phase = time.time_ns(), tap.phase
        if finished:
            phase = _FINISHED, time.monotonic_ns()
        if phase is None:
            return None
        since_ns = now_ns - max(0, time.monotonic_ns() - phase[1])
        return Beat(tap.step, *self._place, now_ns, phase[0], since_ns)

    def _read_gpu(self) -> dict[str, Any] | None:
        reading = None if self._gpu is None else self._gpu.take(time.monotonic())
        return None if reading is None else reading.document(self._place[0])

    def _diagnostics(self) -> dict[str, str]:
        rank = self._place[0]
        files = {f"stack_{rank}.json": training_stack(self._training_thread).decode()}
        pending = pending_collectives()
        if pending is not None:
            files[f"_dump_{rank}.json"] = pending.decode()
        return files

    def _record_if_allowed(self, request: RecordRequest) -> None:
        budget, now_s, reason = self._budget, time.monotonic(), request.reason
        if budget is None:
            _log.info("the server asks for a session (%s); this job does not record for it", reason)
            return
        if not budget.has_room(request, self._tap.step, now_s):
            _log.info("the server asks for a session (%s) beyond the budget of this job", reason)
        elif self._record(request):
            budget.count(request, now_s)
            _log.info("recording %d steps: %s", request.steps, reason)
