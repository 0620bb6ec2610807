"""XProf: collectives, computing and steps of each device in a trace of JAX or TensorFlow.

An XLA program does not distinguish forward from backward, so nothing can be replayed. It shows
when each device arrives at each collective, and what else it executes.
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
# Not matched over devices: which of them exchange what is not said.
_OTHERS: Final = {
    "collective-permute": RING,
    "all-to-all": "ep-all-to-all",
    "ragged-all-to-all": "ep-all-to-all",
}
# Computations with less between them are one.
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
    """Make operations of what is kept of a trace.

    Parameters
    ----------
    name : str or None
        Name of the file, which is that of its host.

    Raises
    ------
    InvalidTraceError
        `trace.no_rows`: no device ran anything. Also those of `Rows.trace`.
    """
    devices = [one for _, one in sorted(collected.devices.items()) if len(one.starts)]
    if not devices:
        refuse_body("no_rows", _NO_DEVICES)
    tp = _tensor_size(collected.instructions, len(devices))
    known = meta or SessionMeta(Sizes(dp=len(devices) // tp, pp=1, tp=tp))
    rows, lost = Rows(limits), Counter[str]()
    for rank, device in enumerate(devices):
        _Reader(collected, device, rank, known.sizes, rows, lost).read()
    host = collected.host or (name.split(".", 1)[0] if name else None)
    if host and is_name(host):
        known = replace(known, hosts=dict.fromkeys(range(len(devices)), host) | dict(known.hosts))
    said = (Unmapped(what, count, _ANNOTATE) for what, count in lost.items())
    return Recording(rows.trace(not_replayed(known, REASON), part=part), total(said))


def decode_xplane(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check ``*.xplane.pb``; see `read_xplane` and `decode_xprof`."""
    from app.analysis.trace.recordings.xprof_files import read_xplane  # noqa: PLC0415

    found = read_xplane(body, limits)
    return decode_xprof(found, meta, limits, name=_name(body), part=part)


def decode_trace_json(
    body: Path | bytes, meta: SessionMeta | None, limits: Limits, *, part: bool
) -> Recording:
    """Decode and check ``trace.json.gz``; see `read_trace_json` and `decode_xprof`."""
    from app.analysis.trace.recordings.xprof_files import read_trace_json  # noqa: PLC0415

    found = read_trace_json(body, limits)
    return decode_xprof(found, meta, limits, name=_name(body), part=part)


def _name(body: Path | bytes) -> str | None:
    named = isinstance(body, Path) and body.name.endswith((".xplane.pb", ".trace.json.gz"))
    return body.name if named and isinstance(body, Path) else None


def _number(numbers: Sequence[int], steps: Sequence[int]) -> bool:
    """Return whether numbers are those of the steps, one each."""
    return len(numbers) == len(steps) == len(set(numbers))


def _tensor_size(instructions: list[Instruction], devices: int) -> int:
    """Return how many neighboring devices share collectives that others have no part in."""
    sizes = {
        one.groups.size
        for one in instructions
        if one.groups is not None and one.groups.contiguous and one.groups.size > 1
    }
    size = sizes.pop() if len(sizes) == 1 else 1
    return size if devices % size == 0 else 1


class _Reader:
    """Makes the rows of one device."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that is known of the device
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
        # Some collectives are waited for where they stand.
        self._blocking = any(
            one.part is Part.WHOLE and one.kind in _DATA for one in collected.instructions
        )

    def read(self) -> None:
        """Add the collectives and computations of each step."""
        self._computations()
        self._collectives()

    def _find_steps(self, device: Device) -> _Steps:
        """Return the steps: of the device, of its runs of the main program, or as annotated."""
        annotated = sorted(self._collected.annotated)
        named = tuple(number for _, number in annotated)
        if device.steps:
            begins, numbers = zip(*sorted(device.steps), strict=True)
            # A device counts from where its profiler began, which is another step on each host.
            return _Steps(begins, named if _number(named, begins) else numbers)
        runs = self._runs(device)
        if runs:
            counted = tuple(range(len(runs)))
            return _Steps(tuple(runs), named if _number(named, runs) else counted)
        if annotated:
            begins, numbers = zip(*annotated, strict=True)
            return _Steps(begins, numbers)
        return _Steps((int(self._start[0]),), (0,))

    def _runs(self, device: Device) -> list[int]:
        """Return where runs of the program begin that takes the longest in all."""
        if device.programs:
            spent: Counter[str] = Counter()
            for start, end, name in device.programs:
                spent[name] += end - start
            main = spent.most_common(1)[0][0]
            return sorted(start for start, _, name in device.programs if name == main)
        known = self._run != 0
        if not known.any():
            return []
        # Programs that a step needs again and again have as many runs as it has steps.
        _, first = np.unique(self._run[known], return_index=True)
        return sorted(self._start[known][first].tolist())

    def _computations(self) -> None:
        """Add what is computed, as stretches without a pause, within a step each."""
        computes = np.flatnonzero(self._kind == COMPUTES)
        if not len(computes):
            return
        start, end = self._start[computes], self._end[computes]
        step = np.searchsorted(np.array(self._steps.begins), start, side="right") - 1
        reach = np.maximum.accumulate(end)
        # A collective between two computations is no part of either.
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
        """Return when the collective started that ends here."""
        for place, (name, start) in enumerate(waiting):
            if ends.started is None or name == ends.started:
                del waiting[place]
                return start
        return otherwise

    def _op(self, instruction: Instruction) -> str:
        if self._blocking and instruction.part is not Part.WHOLE:
            # A device waits for its end when it needs it: ends on several are not one moment, by
            # which clocks of hosts are aligned and collectives matched.
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
