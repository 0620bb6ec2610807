"""Operations of a rank whose recording labels the actions of its pipeline.

A computation begins when its receive is done, because an action of the pipeline runtime waits for
it first. A transfer is the send or receive issued by its action. On a device both are the kernels
launched by the action; without one, the ranges of the process group's backend.
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

# An action's computation and the receive that it waits for.
_WAITS_FOR: Final = {FORWARD_COMPUTE: FORWARD_RECV, BACKWARD_COMPUTE: BACKWARD_RECV}
TRANSFERS: Final = frozenset({"send", "recv", "sendrecv", "coalesced"})

_AT_ONCE: Final = "actions that run a forward and a backward at once"
ATTACH: Final = "record with paceline_client.torch.attach"


@dataclass(frozen=True, slots=True)
class Advice:
    """What to do about a recording that lacks something, in the words of its profiler."""

    # no_labels, unknown_rank: why it is refused, and what to do
    no_labels: str
    unknown_rank: str
    no_kernel: str  # the setting that records what a range did on the device


class LabelledReader:
    """Makes the rows of one scan."""

    def __init__(  # noqa: PLR0913, PLR0917 - all that is known of the rank
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
        # Ranges of the job's own are those of the device's track.
        self._own_on_device = own_on_device
        self.rows = Rows(limits)
        self._scan = scan
        self._rank = rank
        self._cell = cell
        self._chunk_of = chunk_of
        in_order = sorted(scan.labelled, key=lambda one: (one.span.start, -one.span.end))
        self._labelled = without_first_tries(in_order, find_steps(scan, in_order))
        self._tried_again = len(in_order) - len(self._labelled)
        self._steps = find_steps(scan, self._labelled)
        self._parts = join_ranges([one.label for one in self._labelled], self._steps.of_label)
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
            self._find_halves()
        received = self._receives()
        parts = {part for parts in self._parts.values() for part in parts}
        for place, one in enumerate(self._labelled):
            if place in self._parts or (one.label.kind is LabelKind.COMPUTE and place not in parts):
                self._computation(place, one, received)
            elif one.label.kind is not LabelKind.COMPUTE:
                self._communication(place, one)
        self._optimizers()
        for op, span in self._scan.between:
            self._add(op, span, self._steps.at(span.start))
        self._collectives()
        self._lose("forwards that were tried again", None, self._tried_again)
        self._lose(_AT_ONCE, ATTACH, self._scan.not_apart)
        self._lose("labels of actions that are not known", ATTACH, self._scan.strange)
        self._lose("labelled ranges that the recording holds twice", None, self._scan.copies)

    def read_pipeline(self, found: Pipeline) -> None:
        """Add what an implied schedule says, and what else the scan has."""
        for one in found.operations:
            self._add(one.op, one.span, one.step, one.mb, one.mc)
        self._optimizers()
        for op, span in self._scan.between:
            self._add(op, span, self._steps.at(span.start))
        self._collectives()
        if found.reason:
            self._lose(f"steps of a pipeline: {found.reason}", ATTACH, found.unlike)

    def unmapped(self) -> tuple[Unmapped, ...]:
        """Return what was left out."""
        lost = [Unmapped(what, count, remedy) for (what, remedy), count in self._lost.items()]
        return total(lost if self._scan.own is None else [*lost, *self._scan.own.unmapped()])

    def _find_on_device(self) -> None:
        """Find the kernels of each labelled range."""
        count = len(self._labelled)
        first = np.full(count, np.iinfo(np.int64).max)
        last = np.full(count, np.iinfo(np.int64).min)
        least = np.zeros(count, np.int64)
        busy = np.zeros(count, np.int64)
        ranges = [one.span for one in self._labelled]
        halves = [one.half for one in self._labelled]
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
        # One kernel of a negative duration says that of all.
        last = np.where(least < 0, first + least, last)
        for computed in np.flatnonzero((first <= last) | (least < 0)).tolist():
            event = self._labelled[computed].span.event
            self._computed[computed] = Span(int(first[computed]), int(last[computed]), event)
        for backward, half in enumerate(halves):
            if half is not None and half.backward:
                self._share_out(backward - 1, backward, busy)
        if self._own_on_device:
            own = [at for at, one in enumerate(self._labelled) if one.label.own]
            self._computed |= {at: self._labelled[at].span for at in own}

    def _share_out(self, forward: int, backward: int, busy: NDArray[np.int64]) -> None:
        """Let a forward and a backward that run at once take turns, each as long as it is busy."""
        one, other = self._computed.get(forward), self._computed.get(backward)
        if one is None or other is None or one.end <= other.start:
            return
        begin, end = min(one.start, other.start), max(one.end, other.end)
        both = int(busy[forward] + busy[backward])
        cut = begin + (end - begin) * int(busy[forward]) // max(both, 1)
        self._computed[forward] = Span(begin, cut, one.event)
        self._computed[backward] = Span(cut, end, other.event)

    def _optimizers(self) -> None:
        """Add what optimizers did: on a device the kernels that they launched, whenever these ran.

        Where a recording has none of these, as of an optimizer on the host, the range is what it
        did.
        """
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
        """Find what the backend of a process group did for each send, receive and collective."""
        issuing = [
            (place, one.span)
            for place, one in enumerate(self._labelled)
            if one.label.kind is not LabelKind.COMPUTE
        ]
        starts = [span.start for _, span in issuing]
        for number, work in enumerate(self._scan.works):
            at = bisect_right(starts, work.span.start) - 1
            if at < 0 or issuing[at][1].end <= work.span.start:
                continue
            self._issue(issuing[at][0], number)

    def _find_halves(self) -> None:
        """Tell apart what ran forward and what autograd ran in ranges that hold both."""
        if not any(one.half for one in self._labelled):
            return
        nodes, calls = (
            columns_of(table, 3) for table in (self._scan.gradients.table, self._scan.outer.table)
        )
        for place, one in enumerate(self._labelled):
            if one.half is None:
                continue
            span = one.span
            inside = nodes[:, (nodes[0] >= span.start) & (nodes[0] < span.end)]
            if not inside.size:
                continue
            begin = int(inside[0].min())
            if one.half.backward:
                end = int((inside[0] + inside[1]).max(initial=begin))
                self._computed[place] = Span(begin, end, span.event)
            else:
                own = calls[:, (calls[0] >= span.start) & (calls[0] < begin)]
                end = int((own[0] + own[1]).max(initial=span.start))
                self._computed[place] = Span(span.start, end, span.event)

    def _issue(self, place: int, number: int) -> None:
        """Note that a labelled range issued a work, if it is of a kind that such a range issues.

        Another thread may run a collective meanwhile, and a computation gathers its parameters.
        """
        kind = self._labelled[place].label.kind
        transfers = self._scan.works[number].name in TRANSFERS
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
        step, label = self._steps.of_label[place], one.label
        parts = self._parts.get(place, [place])
        if self._on_device:
            computed = [self._computed[part] for part in parts if part in self._computed]
            if not computed:
                self._lose("computations without a kernel", self._advice.no_kernel)
                return
        elif one.half is not None:
            if place not in self._computed:
                # Counted once for both.
                self._lose(_AT_ONCE, ATTACH, int(one.half.backward))
                return
            computed = [self._computed[place]]
        else:
            computed = [self._labelled[part].span for part in parts]
        first, last = min(span.start for span in computed), max(span.end for span in computed)
        span = Span(first, last, one.span.event)
        if not self._on_device and label.op in _WAITS_FOR:
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
        elif one.label.own:
            # Libraries of their own send and receive by kernels that name no process group.
            found = self._computed.get(place) if self._on_device else one.span
            if found is None:
                self._lose("labelled ranges without a kernel", self._advice.no_kernel)
            else:
                self._add_labelled(one, found, self._steps.of_label[place])
        elif one.label.kind is LabelKind.TRANSFER:
            self._lose("sends and receives whose transfer is not recorded", self._advice.no_kernel)
        # A stage that is not sharded is unsharded by doing nothing.

    def _collectives(self) -> None:
        """Add the works that no labelled range issued, by their process groups."""
        labelled = {number for numbers in self._works.values() for number in numbers}
        if not self._labelled:
            # Those of the pipeline are known by now.
            labelled |= {
                number for number, work in enumerate(self._scan.works) if work.name in TRANSFERS
            }
        joined: dict[tuple[str, str, int], tuple[str, Span, int]] = {}
        # A host runs ahead of its device: a collective belongs to the step that launched it.
        launched = launch_times(self._scan, self._scan.works)
        for number, work in enumerate(self._scan.works):
            if number in labelled or work.on_device != self._on_device:
                continue
            op = self._collective(work)
            if op is None:
                continue
            # Several kernels with one number are one collective.
            key = (work.group, work.name, -1 - number if work.seq is None else work.seq)
            issued = launched.get(work.correlation, work.span.start)
            _, known, issued = joined.get(key, (op, work.span, issued))
            first, last = min(known.start, work.span.start), max(known.end, work.span.end)
            joined[key] = (op, Span(first, last, known.event), issued)
        for op, span, issued in joined.values():
            self._add(op, span, self._steps.at(issued))

    def _collective(self, work: Work) -> str | None:
        dimension = dimension_of(work.description)
        known = {} if dimension is None else OF_DIMENSION.get(dimension, {})
        if work.name in known:
            return known[work.name]
        if work.name in TRANSFERS:
            self._lose("sends and receives outside of an action of the pipeline", ATTACH)
        elif self._is_of_replicas(work) and work.name in OF_DIMENSION[Dimension.DATA]:
            return OF_DIMENSION[Dimension.DATA][work.name]
        elif not work.description:
            self._lose("collectives whose process group is not recorded", ATTACH)
        else:
            self._lose(f"{work.name[:40]} of the process group {work.description[:80]}", None)
        return None

    def _is_of_replicas(self, work: Work) -> bool:
        """Return whether a collective without a group's name can only be of data-parallel ranks."""
        sizes = self._cell.sizes
        return not (self._labelled or work.description) and sizes.dp > 1 == sizes.tp * sizes.cp

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
