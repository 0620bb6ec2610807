"""From a profiler's recording of one rank to its operations.

An action of the pipeline runtime waits for its receive first, so its computation begins where the
receive is done. A transfer is the send or receive that its action issued. On a device both are the
kernels that the action launched; without one, the ranges of the process group's backend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import MAX_WORLD, Limits
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    GRADS_REDUCE_SCATTER,
    OPTIMIZER,
    PARAMS_ALL_GATHER,
    RING,
    SessionMeta,
)
from app.analysis.trace.ranks.values import is_name
from app.analysis.trace.recordings.labels import LabelKind
from app.analysis.trace.recordings.profiler.device import launched_kernels
from app.analysis.trace.recordings.profiler.groups import (
    DATA_DIMENSIONS,
    Cell,
    Dimension,
    cell_of,
    dimension_of,
)
from app.analysis.trace.recordings.profiler.scan import Labelled, Scan, Span, Work
from app.analysis.trace.recordings.profiler.steps import find_steps
from app.analysis.trace.recordings.recording import Recording
from app.analysis.trace.recordings.rows import Rows
from app.analysis.trace.unmapped import Unmapped, total
from app.errors import InvalidMetadataError

# An action's computation and the receive that it waits for.
_WAITS_FOR: Final = {FORWARD_COMPUTE: FORWARD_RECV, BACKWARD_COMPUTE: BACKWARD_RECV}
_DATA_COLLECTIVES: Final = {
    "allgather": PARAMS_ALL_GATHER,
    "reducescatter": GRADS_REDUCE_SCATTER,
    "allreduce": GRADS_REDUCE_SCATTER,
}
_TENSOR_COLLECTIVES: Final = {
    "allgather": "tp-all-gather",
    "reducescatter": "tp-reduce-scatter",
    "allreduce": "tp-all-reduce",
}
_CONTEXT_COLLECTIVES: Final = {
    "allgather": "cp-all-gather",
    "reducescatter": "cp-reduce-scatter",
    "alltoall": "cp-all-to-all",
    "alltoallv": "cp-all-to-all",
    # A ring passes keys and values on: fused calls, or one send and one receive.
    **dict.fromkeys(("coalesced", "sendrecv", "send", "recv"), RING),
}
_OF_DIMENSION: Final = {
    **dict.fromkeys(DATA_DIMENSIONS, _DATA_COLLECTIVES),
    Dimension.TENSOR: _TENSOR_COLLECTIVES,
    Dimension.CONTEXT: _CONTEXT_COLLECTIVES,
}
_TRANSFERS: Final = frozenset({"send", "recv", "sendrecv", "coalesced"})

ATTACH: Final = "record with paceline_client.torch.attach"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a recording that lacks something, in the words of its profiler."""

    # no_labels, unknown_rank: why it is refused, and what to do
    no_labels: str
    unknown_rank: str
    no_kernel: str  # the setting that records what a range did on the device


def decode_scan(
    scan: Scan, meta: SessionMeta | None, limits: Limits, advice: Advice, *, part: bool
) -> Recording:
    """Make operations of what is kept of a recording.

    Raises
    ------
    InvalidTraceError
        `trace.no_labels`: nothing says which range is which operation; `trace.unknown_rank`.
        Also those of `Rows.trace`.
    InvalidMetadataError
        See `cell_of`.
    """
    if not scan.labelled:
        refuse_body("no_labels", advice.no_labels)
    if scan.rank is None:
        refuse_body("unknown_rank", advice.unknown_rank)
    rank, world = scan.rank, _world(scan, meta)
    stages = sorted({one.label.stage for one in scan.labelled if one.label.stage != ABSENT})
    cell = cell_of(rank, world, scan.groups, stages, meta)
    chunk_of = {stage: mc for mc, stage in enumerate(stages)}
    reader = _Reader(scan, rank, cell, chunk_of, limits, advice)
    reader.read()
    known = meta or SessionMeta(cell.sizes)
    known = replace(
        known, hosts=_with(known.hosts, rank, scan.host), gpus=_with(known.gpus, rank, scan.gpu)
    )
    return Recording(reader.rows.trace(known, part=part), reader.unmapped())


def _with(names: Mapping[int, str], rank: int, name: str | None) -> Mapping[int, str]:
    """Return the names of ranks with one more, unless it is known already."""
    return {rank: name, **names} if name and is_name(name) else names


def _world(scan: Scan, meta: SessionMeta | None) -> int:
    if meta is not None:
        world = meta.sizes.world
    elif scan.world is not None:
        world = scan.world
    else:
        raise InvalidMetadataError(
            "the recording does not say how many ranks there are: give the sizes with it",
            code="metadata.missing",
        )
    if scan.rank is None or not 0 <= scan.rank < world <= MAX_WORLD:
        refuse_body("rank_out_of_range", f"rank {scan.rank} is outside of {world} ranks")
    return world


class _Reader:
    """Makes the rows of one scan."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that is known of the rank
        self,
        scan: Scan,
        rank: int,
        cell: Cell,
        chunk_of: Mapping[int, int],
        limits: Limits,
        advice: Advice,
    ) -> None:
        self._advice = advice
        self.rows = Rows(limits)
        self._scan = scan
        self._rank = rank
        self._cell = cell
        self._chunk_of = chunk_of
        self._labelled = sorted(scan.labelled, key=lambda one: (one.span.start, -one.span.end))
        self._steps = find_steps(scan, self._labelled)
        self._lost: Counter[tuple[str, str | None]] = Counter()
        self._on_device = len(scan.kernels) > 0
        # What each labelled range computed on the device, and the works that it issued.
        self._computed: dict[int, Span] = {}
        self._works: dict[int, list[int]] = {}

    def read(self) -> None:
        """Add every operation that the scan has."""
        if self._on_device:
            self._find_on_device()
        else:
            self._find_on_host()
        received = self._receives()
        for place, one in enumerate(self._labelled):
            if one.label.kind is LabelKind.COMPUTE:
                self._computation(place, one, received)
            else:
                self._communication(place, one)
        for span in self._scan.optimizers:
            self._add(OPTIMIZER, span, self._steps.at(span.start))
        for op, span in self._scan.between:
            self._add(op, span, self._steps.at(span.start))
        self._collectives()
        self._lose("actions that run a forward and a backward at once", ATTACH, self._scan.strange)

    def unmapped(self) -> tuple[Unmapped, ...]:
        """Return what was left out."""
        return total(Unmapped(what, count, remedy) for (what, remedy), count in self._lost.items())

    def _find_on_device(self) -> None:
        """Find the kernels of each labelled range."""
        count = len(self._labelled)
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        least = np.zeros(count, np.int64)
        ranges = [one.span for one in self._labelled]
        for launched in launched_kernels(self._scan, ranges):
            computing = launched.work < 0
            place = launched.place[computing]
            start, end = launched.start[computing], launched.end[computing]
            np.minimum.at(first, place, start)
            np.maximum.at(last, place, end)
            np.minimum.at(least, place, end - start)
            issued = zip(launched.place[~computing], launched.work[~computing], strict=True)
            for issuing, work in issued:
                self._issue(int(issuing), int(work))
        # One kernel of a negative duration says that of all.
        last = np.where(least < 0, first + least, last)
        for computed in np.flatnonzero((first <= last) | (least < 0)).tolist():
            event = self._labelled[computed].span.event
            self._computed[computed] = Span(int(first[computed]), int(last[computed]), event)

    def _find_on_host(self) -> None:
        """Find what the backend of a process group did for each send, receive and collective."""
        issuing = [
            (place, one.span)
            for place, one in enumerate(self._labelled)
            if one.label.kind is not LabelKind.COMPUTE
        ]
        starts = [span.start for _, span in issuing]
        for number, work in enumerate(self._scan.works):
            at = bisect_right(starts, work.span.start) - 1
            if at < 0 or issuing[at][1].end < work.span.start:
                continue
            self._issue(issuing[at][0], number)

    def _issue(self, place: int, number: int) -> None:
        """Note that a labelled range issued a work, if it is of a kind that such a range issues.

        Another thread may run a collective meanwhile, and a computation gathers its parameters.
        """
        kind = self._labelled[place].label.kind
        transfers = self._scan.works[number].name in _TRANSFERS
        if kind is (LabelKind.TRANSFER if transfers else LabelKind.COLLECTIVE):
            self._works.setdefault(place, []).append(number)

    def _receives(self) -> dict[tuple[str, int, int, int | None], int]:
        """Return when each receive was done, by its type, stage, microbatch and step."""
        done = {}
        for place, numbers in self._works.items():
            label = self._labelled[place].label
            key = (label.op, label.stage, label.mb, self._steps.of_label[place])
            done[key] = max(self._scan.works[number].span.end for number in numbers)
        return done

    def _computation(
        self, place: int, one: Labelled, received: Mapping[tuple[str, int, int, int | None], int]
    ) -> None:
        step, label, span = self._steps.of_label[place], one.label, one.span
        if self._on_device:
            computed = self._computed.get(place)
            if computed is None:
                self._lose("computations without a kernel", self._advice.no_kernel)
                return
            span = computed
        elif label.op in _WAITS_FOR:
            # A wait that a label includes is no computation.
            done = received.get((_WAITS_FOR[label.op], label.stage, label.mb, step), span.start)
            span = Span(min(max(span.start, done), span.end), span.end, span.event)
        self._add_labelled(one, span, step)

    def _communication(self, place: int, one: Labelled) -> None:
        numbers = self._works.get(place)
        if numbers:
            works = [self._scan.works[number].span for number in numbers]
            first, last = min(span.start for span in works), max(span.end for span in works)
            span = Span(first, last, one.span.event)
            self._add_labelled(one, span, self._steps.of_label[place])
        elif one.label.kind is LabelKind.TRANSFER:
            self._lose("sends and receives whose transfer is not recorded", self._advice.no_kernel)
        # A stage that is not sharded is unsharded by doing nothing.

    def _collectives(self) -> None:
        """Add the works that no labelled range issued, by their process groups."""
        labelled = {number for numbers in self._works.values() for number in numbers}
        joined: dict[tuple[str, str, int], tuple[str, Span]] = {}
        for number, work in enumerate(self._scan.works):
            if number in labelled or work.on_device != self._on_device:
                continue
            op = self._collective(work)
            if op is None:
                continue
            # Several kernels with one number are one collective.
            key = (work.group, work.name, -1 - number if work.seq is None else work.seq)
            _, known = joined.get(key, (op, work.span))
            first, last = min(known.start, work.span.start), max(known.end, work.span.end)
            joined[key] = (op, Span(first, last, known.event))
        for op, span in joined.values():
            self._add(op, span, self._steps.at(span.start))

    def _collective(self, work: Work) -> str | None:
        dimension = dimension_of(work.description)
        known = {} if dimension is None else _OF_DIMENSION.get(dimension, {})
        if work.name in known:
            return known[work.name]
        if work.name in _TRANSFERS:
            self._lose("sends and receives outside of an action of the pipeline", ATTACH)
        elif not work.description:
            self._lose("collectives whose process group is not recorded", ATTACH)
        else:
            self._lose(f"{work.name[:40]} of the process group {work.description[:80]}", None)
        return None

    def _add_labelled(self, one: Labelled, span: Span, step: int | None) -> None:
        label = one.label
        mc = self._chunk_of.get(label.stage, label.mc)
        self._add(label.op, span, step, label.mb, mc)

    def _add(
        self, op: str, span: Span, step: int | None, mb: int = ABSENT, mc: int = ABSENT
    ) -> None:
        if step is None:
            self._lose("operations before the first step of the profiler", None)
            return
        self.rows.add(
            op,
            self._scan.base_ns + span.start,
            span.end - span.start,
            event=span.event,
            rank=self._rank,
            dp=self._cell.dp,
            pp=self._cell.pp,
            step=step,
            mb=mb,
            mc=mc,
        )

    def _lose(self, what: str, remedy: str | None, count: int = 1) -> None:
        self._lost[what, remedy] += count
