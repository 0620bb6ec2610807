"""Decoder of XProf traces: collectives, computations and steps of JAX or TensorFlow devices.

An XLA program does not distinguish forward from backward, so its steps cannot be replayed. The
trace shows when each device arrives at each collective, and its other computations.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import Limits, refuse_body
from app.analysis.trace.metadata import Unmapped, not_replayed, total
from app.analysis.trace.model import (
    FORWARD_COMPUTE,
    GRADS_REDUCE_SCATTER,
    PARAMS_ALL_GATHER,
    RING,
    SessionMeta,
    Sizes,
)
from app.analysis.trace.rank_metadata import is_name
from app.analysis.trace.recordings.recording import Recording, Rows
from app.analysis.trace.recordings.xprof_instructions import (
    COMPUTES,
    Collected,
    Device,
    Instruction,
    Part,
)

REASON: Final = "a trace of XProf does not tell a forward from a backward"
_DATA: Final = {
    "all-reduce": GRADS_REDUCE_SCATTER,
    "reduce-scatter": GRADS_REDUCE_SCATTER,
    "all-gather": PARAMS_ALL_GATHER,
}
_TENSOR: Final = {
    "all-reduce": "tp-all-reduce",
    "reduce-scatter": "tp-reduce-scatter",
    "all-gather": "tp-all-gather",
}
# Collectives whose device groups are not recorded; their types are never matched across devices.
_OTHERS: Final = {
    "collective-permute": RING,
    "all-to-all": "ep-all-to-all",
    "ragged-all-to-all": "ep-all-to-all",
}
# Computations with a gap below this are joined.
_APART_NS: Final = 1000
_ANNOTATE: Final = 'annotate steps with jax.profiler.StepTraceAnnotation("train", step_num=step)'
_NO_DEVICES: Final = (
    "the trace holds no instructions of devices: take it with jax.profiler.start_trace while steps "
    "run, and send the xplane.pb files of all hosts"
)


@dataclass(frozen=True, slots=True)
class _Steps:
    begins: tuple[int, ...]
    numbers: tuple[int, ...]


def decode_xprof(
    collected: Collected, meta: SessionMeta | None, limits: Limits, *, name: str | None, part: bool
) -> Recording:
    """Return the recording of the operations collected from a file.

    Parameters
    ----------
    name : str or None
        Name of the file, which begins with the name of its host.

    Raises
    ------
    InvalidTraceError
        `trace.no_rows`: no device ran anything. Also the errors of `Rows.trace`.
    """
    devices = [device for _, device in sorted(collected.devices.items()) if len(device.starts)]
    if not devices:
        refuse_body("no_rows", _NO_DEVICES)
    # Without recorded sizes, consecutive devices that share collectives are assumed to be
    # tensor-parallel.
    group_sizes = {
        instruction.groups.size
        for instruction in collected.instructions
        if instruction.groups is not None
        and instruction.groups.contiguous
        and instruction.groups.size > 1
    }
    tp = group_sizes.pop() if len(group_sizes) == 1 else 1
    tp = tp if len(devices) % tp == 0 else 1
    session_meta = meta or SessionMeta(Sizes(dp=len(devices) // tp, pp=1, tp=tp))
    rows, lost = Rows(limits), Counter[str]()
    for rank, device in enumerate(devices):
        _Reader(collected, device, rank, session_meta.sizes, rows, lost).read()
    host = collected.host or (name.split(".", 1)[0] if name else None)
    if host and is_name(host):
        session_meta = replace(
            session_meta, hosts=dict.fromkeys(range(len(devices)), host) | dict(session_meta.hosts)
        )
    unmapped = (Unmapped(what, count, _ANNOTATE) for what, count in lost.items())
    return Recording(rows.trace(not_replayed(session_meta, REASON), part=part), total(unmapped))


def decode_xplane(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check ``*.xplane.pb``; see `read_xplane` and `decode_xprof`."""
    from app.analysis.trace.recordings.xprof_files import read_xplane  # noqa: PLC0415

    collected = read_xplane(body, limits)
    return decode_xprof(collected, meta, limits, name=_name(body), part=part)


def decode_trace_json(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check ``trace.json.gz``; see `read_trace_json` and `decode_xprof`."""
    from app.analysis.trace.recordings.xprof_files import read_trace_json  # noqa: PLC0415

    collected = read_trace_json(body, limits)
    return decode_xprof(collected, meta, limits, name=_name(body), part=part)


def _name(body: Path | bytes) -> str | None:
    """Return the name of a file if it has XProf's form; None for other names."""
    named = isinstance(body, Path) and body.name.endswith((".xplane.pb", ".trace.json.gz"))
    return body.name if named and isinstance(body, Path) else None


def _fit(numbers: Sequence[int], steps: Sequence[int]) -> bool:
    """Return whether `numbers` are distinct and as many as the steps."""
    return len(numbers) == len(steps) == len(set(numbers))


class _Reader:
    """Decoder of the events of one device."""

    def __init__(  # noqa: PLR0913, PLR0917 - facts of the device
        self,
        collected: Collected,
        device: Device,
        rank: int,
        sizes: Sizes,
        rows: Rows,
        lost: Counter[str],
    ) -> None:
        self._collected = collected
        self._rows = rows
        self._rank = rank
        self._sizes = sizes
        self._lost = lost
        self._start = np.frombuffer(device.starts, np.int64)
        order = np.argsort(self._start, kind="stable")
        self._start = self._start[order]
        self._end = np.frombuffer(device.ends, np.int64)[order]
        self._kind = np.frombuffer(device.kinds, np.int64)[order]
        self._run = np.frombuffer(device.runs, np.int64)[order]
        self._steps = self._find_steps(device)
        # Whether any data-parallel collective is synchronous: the device then waits for it as soon
        # as it starts.
        self._blocking = any(
            instruction.part is Part.WHOLE and instruction.kind in _DATA
            for instruction in collected.instructions
        )

    def read(self) -> None:
        """Add the collectives and computations of all steps."""
        self._computations()
        self._collectives()

    def _find_steps(self, device: Device) -> _Steps:
        """Return the steps of a device.

        Steps come from the device's own step events, else from the runs of its main program, else
        from the host's annotations.
        """
        annotated = sorted(self._collected.annotated)
        named = tuple(number for _, number in annotated)
        if device.steps:
            begins, numbers = zip(*sorted(device.steps), strict=True)
            # The host's step numbers are preferred: a device counts steps from the start of its
            # profiler, which differs between hosts.
            return _Steps(begins, named if _fit(named, begins) else numbers)
        runs = self._runs(device)
        if runs:
            counted = tuple(range(len(runs)))
            return _Steps(tuple(runs), named if _fit(named, runs) else counted)
        if annotated:
            begins, numbers = zip(*annotated, strict=True)
            return _Steps(begins, numbers)
        return _Steps((int(self._start[0]),), (0,))

    def _runs(self, device: Device) -> list[int]:
        """Return the starts of all runs of the program with the longest total time, ns."""
        if device.programs:
            spent: Counter[str] = Counter()
            for start, end, name in device.programs:
                spent[name] += end - start
            main = spent.most_common(1)[0][0]
            return sorted(start for start, _, name in device.programs if name == main)
        numbered = self._run != 0
        if not numbered.any():
            return []
        # Without program names, each distinct run number counts as a step.
        _, first = np.unique(self._run[numbered], return_index=True)
        return sorted(self._start[numbered][first].tolist())

    def _computations(self) -> None:
        """Add the computations; computations with a short gap within a step are joined."""
        computes = np.flatnonzero(self._kind == COMPUTES)
        if not len(computes):
            return
        start, end = self._start[computes], self._end[computes]
        step = np.searchsorted(np.array(self._steps.begins), start, side="right") - 1
        reach = np.maximum.accumulate(end)
        # Computations before and after a collective are not joined.
        meets = self._start[self._kind >= 0]
        before = np.searchsorted(meets, start)
        begins = np.concatenate(
            (
                [True],
                (start[1:] > reach[:-1] + _APART_NS)
                | (step[1:] != step[:-1])
                | (before[1:] != before[:-1]),
            )
        )
        first = np.flatnonzero(begins)
        last: NDArray[np.int64] = np.maximum.reduceat(end, first)
        for at, until in zip(first.tolist(), last.tolist(), strict=True):
            self._add(FORWARD_COMPUTE, int(start[at]), until, int(computes[at]))

    def _collectives(self) -> None:
        pending: dict[str, deque[tuple[str, int]]] = {}
        for at in np.flatnonzero(self._kind >= 0).tolist():
            instruction = self._collected.instructions[int(self._kind[at])]
            start, end = int(self._start[at]), int(self._end[at])
            waiting = pending.setdefault(instruction.kind, deque())
            if instruction.part is Part.START:
                waiting.append((instruction.name, start))
                continue
            if instruction.part is Part.DONE:
                start = self._started(instruction, waiting, start)
            op = self._op(instruction)
            self._add(op, start, end, at)
        unfinished = sum(map(len, pending.values()))
        if unfinished:
            self._lost["collectives that do not end in the trace"] += unfinished

    @staticmethod
    def _started(ends: Instruction, waiting: deque[tuple[str, int]], otherwise: int) -> int:
        """Return the start of the asynchronous collective that `ends`, and stop waiting for it."""
        for place, (name, start) in enumerate(waiting):
            if ends.started is None or name == ends.started:
                del waiting[place]
                return start
        return otherwise

    def _op(self, instruction: Instruction) -> str:
        if self._blocking and instruction.part is not Part.WHOLE:
            # A device waits for the end of an asynchronous collective only when it needs the
            # result, so the recorded ends differ between devices. `RING` is neither matched across
            # ranks nor used to align clocks.
            return RING
        groups = instruction.groups
        if groups is not None and groups.contiguous and groups.size == self._sizes.tp > 1:
            return _TENSOR.get(instruction.kind) or _OTHERS.get(instruction.kind, instruction.kind)
        return _DATA.get(instruction.kind) or _OTHERS.get(instruction.kind, instruction.kind)

    def _add(self, op: str, start: int, end: int, event: int) -> None:
        place = bisect_right(self._steps.begins, start) - 1
        if place < 0:
            self._lost["instructions before the first step"] += 1
            return
        self._rows.add(
            op,
            self._collected.base_ns + start,
            end - start,
            event=event,
            rank=self._rank,
            dp=self._rank // self._sizes.tp % self._sizes.dp,
            pp=0,
            step=self._steps.numbers[place],
        )
