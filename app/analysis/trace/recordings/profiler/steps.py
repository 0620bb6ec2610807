"""Which training step an event belongs to.

Ranges of the job's own say it (`own.ranges`), else the profiler's own by number
(``ProfilerStep#12``, which ``prof.step()`` makes).
Without them a step ends with its optimizer; without that, a step begins where an action comes
again. Such steps count from 0.
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
    """Steps of a recording."""

    begins: tuple[int, ...]  # where each begins, in ns, rising
    numbers: tuple[int, ...]  # of each
    of_label: tuple[int | None, ...]  # the step of each labelled range; None before the first one

    def at(self, time: int) -> int | None:
        """Return the step at a time, None before the first one."""
        return _at(self.begins, self.numbers, time)


def find_steps(scan: Scan, labelled: Sequence[Labelled]) -> Steps:
    """Return the steps of a scan.

    Parameters
    ----------
    labelled : sequence of Labelled
        Its labelled ranges by start; where there are none, calls of process groups are actions.
    """
    if scan.own_steps:
        begins, numbers = _own_steps(scan.own_steps)
    elif scan.steps:
        ordered = sorted(dict(sorted(scan.steps, reverse=True)).items())
        begins, numbers = zip(*ordered, strict=True)
    elif scan.optimizers:
        begins = _after_optimizers(scan, labelled)
        numbers = tuple(range(len(begins)))
    elif any(one.label.own for one in labelled):
        # Layers repeat within a step.
        begins, numbers = (labelled[0].span.start,), (0,)
    elif labelled:
        return _by_repetition(labelled)
    else:
        return Steps((), (), ())
    of_label = tuple(
        _at(begins, numbers, one.span.start) if one.step is None else one.step for one in labelled
    )
    return Steps(tuple(begins), tuple(numbers), of_label)


def without_first_tries(labelled: Sequence[Labelled], steps: Steps) -> tuple[Labelled, ...]:
    """Leave out forwards that came again, without a backward of theirs in between.

    So does a forward that ran out of memory and was tried again. What comes again after its
    backward is of another round of a step.

    Parameters
    ----------
    labelled : sequence of Labelled
        By start.
    steps : Steps
        Those of the same ranges.
    """
    tried: dict[object, int] = {}
    left_out: set[int] = set()
    for place, (one, step) in enumerate(zip(labelled, steps.of_label, strict=True)):
        label = one.label
        if label.mb == ABSENT or label.own or label.op not in {FORWARD_COMPUTE, BACKWARD_COMPUTE}:
            continue
        which = (label.stage, label.mc, label.mb, step)
        if label.op == BACKWARD_COMPUTE:
            tried.pop(which, None)
            continue
        if which in tried:
            left_out.add(tried[which])
        tried[which] = place
    return tuple(one for place, one in enumerate(labelled) if place not in left_out)


def _own_steps(
    said: Sequence[tuple[int, int | None]],
) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return where steps begin that ranges of the job's own say, and their numbers.

    Where no range says a number, they count from 0.
    """
    ordered = sorted(said, key=lambda one: one[0])
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
    """Return where steps begin: at first, and after each optimizer that actions follow."""
    starts = sorted(one.span.start for one in (labelled or scan.issues))
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
    """Return the steps of actions of which each comes once a step."""
    seen: dict[object, int] = {}
    of_label: list[int | None] = []
    begins: list[int] = []
    for one in labelled:
        if one.label.kind is LabelKind.COLLECTIVE:
            of_label.append(None)
            continue
        number = seen.get(one.label, 0)
        seen[one.label] = number + 1
        if number == len(begins):
            begins.append(one.span.start)
        of_label.append(number)
    numbers = tuple(range(len(begins)))
    of_label = [
        _at(begins, numbers, one.span.start) if step is None else step
        for one, step in zip(labelled, of_label, strict=True)
    ]
    return Steps(tuple(begins), numbers, tuple(of_label))
