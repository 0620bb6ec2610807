"""Training steps of a recording, and assignment of events to steps.

Steps are the ranges that labels of the job match (`OwnRanges`); without such labels, the profiler's
ranges (``ProfilerStep#12``, from ``prof.step()``). Without such ranges a step ends with its
optimizer; without optimizers, a step begins when an action repeats. Steps without recorded numbers
count from 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from app.analysis.trace.model import ABSENT, BACKWARD_COMPUTE, FORWARD_COMPUTE
from app.analysis.trace.recordings.labels import LabelKind
from app.analysis.trace.recordings.profiler.scan import Labelled, Scan


@dataclass(frozen=True, slots=True)
class Steps:
    """Steps of a recording: their starts and numbers."""

    begins: tuple[int, ...]  # ns, rising
    numbers: tuple[int, ...]
    of_label: tuple[int | None, ...]  # step of each labelled range; None before the first step

    def at(self, time: int) -> int | None:
        """Return the step number at a time; None before the first step."""
        return _at(self.begins, self.numbers, time)


def find_steps(scan: Scan, labelled: Sequence[Labelled]) -> Steps:
    """Return the training steps of a scan.

    Parameters
    ----------
    labelled : sequence of Labelled
        Labelled ranges sorted by start. If there are none, calls of process groups are the actions
        whose repetition begins a step.
    """
    if scan.own_steps:
        begins, numbers = _own_steps(scan.own_steps)
    elif scan.steps:
        ordered = sorted(dict(sorted(scan.steps, reverse=True)).items())
        begins, numbers = zip(*ordered, strict=True)
    elif scan.optimizers:
        begins = _after_optimizers(scan, labelled)
        numbers = tuple(range(len(begins)))
    elif any(item.label.own for item in labelled):
        # Steps cannot be found by repetition, because the job's labels of layers repeat within a
        # step: the recording counts as one step.
        begins, numbers = (labelled[0].span.start,), (0,)
    elif labelled:
        return _by_repetition(labelled)
    else:
        return Steps((), (), ())
    of_label = tuple(
        _at(begins, numbers, item.span.start) if item.step is None else item.step
        for item in labelled
    )
    return Steps(tuple(begins), tuple(numbers), of_label)


def without_first_tries(labelled: Sequence[Labelled], steps: Steps) -> tuple[Labelled, ...]:
    """Return labelled ranges without forwards that were repeated before their backward.

    A job repeats a forward that ran out of memory. A forward repeated after its backward is not a
    retry: it belongs to another round of the step.

    Parameters
    ----------
    labelled : sequence of Labelled
        Labelled ranges by start.
    steps : Steps
        Steps of the same ranges.
    """
    tried: dict[object, int] = {}
    left_out: set[int] = set()
    for place, (item, step) in enumerate(zip(labelled, steps.of_label, strict=True)):
        label = item.label
        if label.mb == ABSENT or label.own or label.op not in {FORWARD_COMPUTE, BACKWARD_COMPUTE}:
            continue
        which = (label.stage, label.mc, label.mb, step)
        if label.op == BACKWARD_COMPUTE:
            tried.pop(which, None)
            continue
        if which in tried:
            left_out.add(tried[which])
        tried[which] = place
    return tuple(item for place, item in enumerate(labelled) if place not in left_out)


def _own_steps(
    ranges: Sequence[tuple[int, int | None]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return starts and numbers of the steps that the job's labels match.

    If no label captures a number, steps count from 0.
    """
    ordered = sorted(ranges, key=lambda step: step[0])
    if all(number is None for _, number in ordered):
        return tuple(start for start, _ in ordered), tuple(range(len(ordered)))
    begins: list[int] = []
    numbers: list[int] = []
    for start, number in ordered:
        if number is not None and number not in numbers[-1:]:
            begins.append(start)
            numbers.append(number)
    return tuple(begins), tuple(numbers)


def _at(begins: Sequence[int], numbers: Sequence[int], time: int) -> int | None:
    place = bisect_right(begins, time) - 1
    return None if place < 0 else numbers[place]


def _after_optimizers(scan: Scan, labelled: Sequence[Labelled]) -> tuple[int, ...]:
    """Return the starts of steps: the first event, and each optimizer's end before an action."""
    starts = sorted(action.span.start for action in (labelled or scan.issues))
    if not starts:
        return ()
    ends = sorted(span.end for span in scan.optimizers)
    first = min([starts[0], *(work.span.start for work in scan.works)])
    begins = [first]
    for end in ends:
        following = bisect_right(starts, end)
        if following < len(starts) and following > bisect_right(starts, begins[-1] - 1):
            begins.append(end)
    return tuple(begins)


def _by_repetition(labelled: Sequence[Labelled]) -> Steps:
    """Return the steps of actions: a step begins when an action repeats."""
    seen: dict[object, int] = {}
    of_label: list[int | None] = []
    begins: list[int] = []
    for item in labelled:
        if item.label.kind is LabelKind.COLLECTIVE:
            of_label.append(None)
            continue
        number = seen.get(item.label, 0)
        seen[item.label] = number + 1
        if number == len(begins):
            begins.append(item.span.start)
        of_label.append(number)
    numbers = tuple(range(len(begins)))
    of_label = [
        _at(begins, numbers, item.span.start) if step is None else step
        for item, step in zip(labelled, of_label, strict=True)
    ]
    return Steps(tuple(begins), numbers, tuple(of_label))
