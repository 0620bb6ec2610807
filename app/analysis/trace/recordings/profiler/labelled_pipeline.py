"""Operations of a rank whose recording has labels for the actions of its pipeline.

A computation begins at the end of the receive of its input, because an action of the pipeline
runtime first waits for this receive. A transfer is the send or receive that its action issued. If
the rank computes on a device, the times of computations and transfers are those of the kernels that
the action launched; without a device a transfer's time is the range of the process group's backend.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.limits import Limits
from app.analysis.trace.metadata import Unmapped, total
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    OPTIMIZER,
)
from app.analysis.trace.recordings.labels import LabelKind, join_ranges
from app.analysis.trace.recordings.profiler.launches import launch_times, launched_kernels
from app.analysis.trace.recordings.profiler.pipeline_work import columns_of
from app.analysis.trace.recordings.profiler.process_groups import (
    OF_DIMENSION,
    Cell,
    Dimension,
    dimension_of,
)
from app.analysis.trace.recordings.profiler.scan import Labelled, Scan, Span, Work
from app.analysis.trace.recordings.profiler.steps import find_steps, without_first_tries
from app.analysis.trace.recordings.profiler.unlabelled_pipeline import Pipeline
from app.analysis.trace.recordings.recording import Rows

# Type of a labelled computation → type of the receive that the computation waits for before it
# starts.
_WAITS_FOR: Final = {FORWARD_COMPUTE: FORWARD_RECV, BACKWARD_COMPUTE: BACKWARD_RECV}
TRANSFERS: Final = frozenset({"send", "recv", "sendrecv", "coalesced"})

_AT_ONCE: Final = "actions that run a forward and a backward at once"
ATTACH: Final = "record with paceline_client.torch.attach"


@dataclass(frozen=True, slots=True)
class Advice:
    """Advice for the sender of an incomplete recording, in the terms of the profiler."""

    # no_labels, unknown_rank: reason of the refusal, with the remedy
    no_labels: str
    unknown_rank: str
    no_kernel: str  # setting of the profiler that records kernels
    host_events: str  # setting of the profiler that records the host's operators, as a sentence


class LabelledReader:
    """Decoder of one scan with labels to operations."""

    def __init__(  # noqa: PLR0913, PLR0917 - facts of the rank
        self,
        scan: Scan,
        rank: int,
        cell: Cell,
        chunk_of: Mapping[int, int],
        limits: Limits,
        advice: Advice,
        *,
        own_on_device: bool,
    ) -> None:
        self._advice = advice
        # Whether the ranges that the job's labels match are on the device's track rather than on
        # the host.
        self._own_on_device = own_on_device
        self.rows = Rows(limits)
        self._scan = scan
        self._rank = rank
        self._cell = cell
        self._chunk_of = chunk_of
        in_order = sorted(scan.labelled, key=lambda item: (item.span.start, -item.span.end))
        self._labelled = without_first_tries(in_order, find_steps(scan, in_order))
        self._tried_again = len(in_order) - len(self._labelled)
        self._steps = find_steps(scan, self._labelled)
        self._parts = join_ranges([item.label for item in self._labelled], self._steps.of_label)
        self._lost: Counter[tuple[str, str | None]] = Counter()
        self._on_device = len(scan.kernels) > 0
        # _computed: index of each labelled range → its computing time; _works: index of each
        # labelled range → indices of the works (collectives and transfers) that it issued
        self._computed: dict[int, Span] = {}
        self._works: dict[int, list[int]] = {}

    def read(self) -> None:
        """Add all operations of the scan to `rows`."""
        if self._on_device:
            self._find_on_device()
        else:
            self._find_on_host()
            self._find_halves()
        # End of each receive in ns, by operation type, stage, microbatch and step.
        received: dict[tuple[str, int, int, int | None], int] = {}
        for place, numbers in self._works.items():
            label = self._labelled[place].label
            key = (label.op, label.stage, label.mb, self._steps.of_label[place])
            received[key] = max(self._scan.works[number].span.end for number in numbers)
        parts = {part for parts in self._parts.values() for part in parts}
        for place, item in enumerate(self._labelled):
            if place in self._parts or (
                item.label.kind is LabelKind.COMPUTE and place not in parts
            ):
                self._computation(place, item, received)
            elif item.label.kind is not LabelKind.COMPUTE:
                self._communication(place, item)
        self._optimizers()
        for op, span in self._scan.between:
            self._add(op, span, self._steps.at(span.start))
        self._collectives()
        self._lose("forwards that were tried again", None, self._tried_again)
        self._lose(_AT_ONCE, ATTACH, self._scan.overlapped_actions)
        self._lose("labels of actions that are not known", ATTACH, self._scan.unknown_labels)
        self._lose("labelled ranges that the recording holds twice", None, self._scan.copies)

    def read_pipeline(self, pipeline: Pipeline) -> None:
        """Add the operations of an implied schedule and the other operations of the scan."""
        for operation in pipeline.operations:
            self._add(operation.op, operation.span, operation.step, operation.mb, operation.mc)
        self._optimizers()
        for op, span in self._scan.between:
            self._add(op, span, self._steps.at(span.start))
        self._collectives()
        if pipeline.reason:
            self._lose(f"steps of a pipeline: {pipeline.reason}", ATTACH, pipeline.unlike)

    def unmapped(self) -> tuple[Unmapped, ...]:
        """Return the items of the scan that could not be mapped to operations."""
        lost = [Unmapped(what, count, remedy) for (what, remedy), count in self._lost.items()]
        return total(lost if self._scan.own is None else [*lost, *self._scan.own.unmapped()])

    def _find_on_device(self) -> None:
        """Store the computing time and the works of each labelled range, from its kernels."""
        count = len(self._labelled)
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        least = np.zeros(count, np.int64)
        busy = np.zeros(count, np.int64)
        ranges = [item.span for item in self._labelled]
        halves = [item.half for item in self._labelled]
        for launched in launched_kernels(self._scan, ranges, halves):
            computing = launched.work < 0
            place = launched.place[computing]
            start, end = launched.start[computing], launched.end[computing]
            np.add.at(busy, place, end - start)
            np.minimum.at(first, place, start)
            np.maximum.at(last, place, end)
            np.minimum.at(least, place, end - start)
            issued = zip(launched.place[~computing], launched.work[~computing], strict=True)
            for issuing, work in issued:
                self._issue(int(issuing), int(work))
        # A kernel with a negative duration gives its range a negative duration too, so that the
        # step is excluded as impossible.
        last = np.where(least < 0, first + least, last)
        for computed in np.flatnonzero((first <= last) | (least < 0)).tolist():
            event = self._labelled[computed].span.event
            self._computed[computed] = Span(int(first[computed]), int(last[computed]), event)
        for backward, half in enumerate(halves):
            if half is not None and half.backward:
                self._separate(backward - 1, backward, busy)
        if self._own_on_device:
            self._computed |= {
                at: item.span for at, item in enumerate(self._labelled) if item.label.own
            }

    def _separate(self, forward: int, backward: int, busy: NDArray[np.int64]) -> None:
        """Split an overlapping forward and backward into two spans, in proportion to busy time."""
        first, second = self._computed.get(forward), self._computed.get(backward)
        if first is None or second is None or first.end <= second.start:
            return
        begin, end = min(first.start, second.start), max(first.end, second.end)
        both = int(busy[forward] + busy[backward])
        cut = begin + (end - begin) * int(busy[forward]) // max(both, 1)
        self._computed[forward] = Span(begin, cut, first.event)
        self._computed[backward] = Span(cut, end, second.event)

    def _optimizers(self) -> None:
        """Add the optimizers with the times of their kernels, or of host ranges without kernels."""
        spans = sorted(self._scan.optimizers, key=lambda span: span.start)
        done: dict[int, tuple[int, int]] = {}
        for launched in launched_kernels(self._scan, spans) if spans and self._on_device else ():
            computing = launched.work < 0
            for place, start, end in zip(
                launched.place[computing].tolist(),
                launched.start[computing].tolist(),
                launched.end[computing].tolist(),
                strict=True,
            ):
                first, last = done.get(place, (start, end))
                done[place] = (min(first, start), max(last, end))
        for place, span in enumerate(spans):
            first, last = done.get(place, (span.start, span.end))
            self._add(OPTIMIZER, Span(first, last, span.event), self._steps.at(span.start))

    def _find_on_host(self) -> None:
        """Store the works of each labelled range, from the host ranges of the backends."""
        issuing = [
            (place, item.span)
            for place, item in enumerate(self._labelled)
            if item.label.kind is not LabelKind.COMPUTE
        ]
        starts = [span.start for _, span in issuing]
        for number, work in enumerate(self._scan.works):
            at = bisect_right(starts, work.span.start) - 1
            if at < 0 or issuing[at][1].end <= work.span.start:
                continue
            self._issue(issuing[at][0], number)

    def _find_halves(self) -> None:
        """Split a range of a forward and a backward by its operators and its autograd nodes."""
        if not any(item.half for item in self._labelled):
            return
        nodes, calls = (
            columns_of(table, 3) for table in (self._scan.gradients.table, self._scan.outer.table)
        )
        for place, item in enumerate(self._labelled):
            if item.half is None:
                continue
            span = item.span
            inside = nodes[:, (nodes[0] >= span.start) & (nodes[0] < span.end)]
            if not inside.size:
                continue
            begin = int(inside[0].min())
            if item.half.backward:
                end = int((inside[0] + inside[1]).max(initial=begin))
                self._computed[place] = Span(begin, end, span.event)
            else:
                own = calls[:, (calls[0] >= span.start) & (calls[0] < begin)]
                end = int((own[0] + own[1]).max(initial=span.start))
                self._computed[place] = Span(span.start, end, span.event)

    def _issue(self, place: int, number: int) -> None:
        """Store that a labelled range issued a work, unless label and work are of different kinds.

        The kinds may differ because another thread may run a collective during the range, and
        because computations gather parameters. A "work" is a collective or a transfer.
        """
        kind = self._labelled[place].label.kind
        transfers = self._scan.works[number].name in TRANSFERS
        if kind is (LabelKind.TRANSFER if transfers else LabelKind.COLLECTIVE):
            self._works.setdefault(place, []).append(number)

    def _computation(
        self,
        place: int,
        labelled: Labelled,
        received: Mapping[tuple[str, int, int, int | None], int],
    ) -> None:
        step, label = self._steps.of_label[place], labelled.label
        parts = self._parts.get(place, [place])
        if self._on_device:
            computed = [self._computed[part] for part in parts if part in self._computed]
            if not computed:
                self._lose("computations without a kernel", self._advice.no_kernel)
                return
        elif labelled.half is not None:
            if place not in self._computed:
                # Count an action with both directions once, at its backward half, although both
                # halves are lost.
                self._lose(_AT_ONCE, ATTACH, int(labelled.half.backward))
                return
            computed = [self._computed[place]]
        else:
            computed = [self._labelled[part].span for part in parts]
        first, last = min(span.start for span in computed), max(span.end for span in computed)
        span = Span(first, last, labelled.span.event)
        if not self._on_device and label.op in _WAITS_FOR:
            # The labelled range includes the wait for the receive, so the computation begins at the
            # end of the receive.
            done = received.get((_WAITS_FOR[label.op], label.stage, label.mb, step), span.start)
            span = Span(min(max(span.start, done), span.end), span.end, span.event)
        self._add_labelled(labelled, span, step)

    def _communication(self, place: int, labelled: Labelled) -> None:
        numbers = self._works.get(place)
        if numbers:
            works = [self._scan.works[number].span for number in numbers]
            first, last = min(span.start for span in works), max(span.end for span in works)
            span = Span(first, last, labelled.span.event)
            self._add_labelled(labelled, span, self._steps.of_label[place])
        elif labelled.label.own:
            # Kernels of communication libraries other than NCCL and RCCL name no process group, so
            # the range has no works. Its time is that of its kernels, or of the host range.
            computed = self._computed.get(place) if self._on_device else labelled.span
            if computed is None:
                self._lose("labelled ranges without a kernel", self._advice.no_kernel)
            else:
                self._add_labelled(labelled, computed, self._steps.of_label[place])
        elif labelled.label.kind is LabelKind.TRANSFER:
            self._lose("sends and receives whose transfer is not recorded", self._advice.no_kernel)
        # A collective label without works is not counted as lost: unsharding a stage that is not
        # sharded runs no collective.

    def _collectives(self) -> None:
        """Add the works that no labelled range issued, with types from their process groups."""
        labelled = {number for numbers in self._works.values() for number in numbers}
        if not self._labelled:
            # The operations of the implied schedule already include the transfers.
            labelled |= {
                number for number, work in enumerate(self._scan.works) if work.name in TRANSFERS
            }
        joined: dict[tuple[str, str, int], tuple[str, Span, int]] = {}
        # The launch time determines the step of a collective, since a host runs ahead of its
        # device.
        launched = launch_times(self._scan, self._scan.works)
        for number, work in enumerate(self._scan.works):
            if number in labelled or work.on_device != self._on_device:
                continue
            op = self._collective(work)
            if op is None:
                continue
            # Several kernels with the same sequence number belong to one collective.
            key = (work.group, work.name, -1 - number if work.seq is None else work.seq)
            issued = launched.get(work.correlation, work.span.start)
            _, earlier, issued = joined.get(key, (op, work.span, issued))
            first, last = min(earlier.start, work.span.start), max(earlier.end, work.span.end)
            joined[key] = (op, Span(first, last, earlier.event), issued)
        for op, span, issued in joined.values():
            self._add(op, span, self._steps.at(issued))

    def _collective(self, work: Work) -> str | None:
        """Return the operation type of a work; count works of unknown type and return None."""
        dimension = dimension_of(work.description)
        op_of_name = {} if dimension is None else OF_DIMENSION.get(dimension, {})
        if work.name in op_of_name:
            return op_of_name[work.name]
        sizes = self._cell.sizes
        unnamed = not (self._labelled or work.description)
        only_data = unnamed and sizes.dp > 1 == sizes.tp * sizes.cp
        if work.name in TRANSFERS:
            self._lose("sends and receives outside of an action of the pipeline", ATTACH)
        elif only_data and work.name in OF_DIMENSION[Dimension.DATA]:
            return OF_DIMENSION[Dimension.DATA][work.name]
        elif not work.description:
            self._lose("collectives whose process group is not recorded", ATTACH)
        else:
            self._lose(f"{work.name[:40]} of the process group {work.description[:80]}", None)
        return None

    def _add_labelled(self, labelled: Labelled, span: Span, step: int | None) -> None:
        label = labelled.label
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
