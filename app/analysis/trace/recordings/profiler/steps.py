"""Which training step an event belongs to.

The profiler's own ranges say it by number (``ProfilerStep#12``, which ``prof.step()`` makes).
Without them a step ends with its optimizer; without that, a step begins where an action comes
again. Such steps count from 0.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

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
    """Return the steps of a scan; `labelled` are its labelled ranges by start, one at least."""
    if scan.steps:
        ordered = sorted(dict(sorted(scan.steps, reverse=True)).items())
        begins, numbers = zip(*ordered, strict=True)
    elif scan.optimizers:
        begins = _after_optimizers(scan, labelled)
        numbers = tuple(range(len(begins)))
    else:
        return _by_repetition(labelled)
    of_label = tuple(_at(begins, numbers, one.span.start) for one in labelled)
    return Steps(tuple(begins), tuple(numbers), of_label)


def _at(begins: Sequence[int], numbers: Sequence[int], time: int) -> int | None:
    place = bisect_right(begins, time) - 1
    return None if place < 0 else numbers[place]


def _after_optimizers(scan: Scan, labelled: Sequence[Labelled]) -> tuple[int, ...]:
    """Return where steps begin: at first, and after each optimizer that actions follow."""
    starts = [one.span.start for one in labelled]
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
