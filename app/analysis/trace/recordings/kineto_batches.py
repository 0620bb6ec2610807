"""Many events of a Kineto file at once: what is only counted in numbers, column by column.

Whatever is kept as an object, as ranges with names that say something and works of process groups,
is taken event by event, as all events of a file are that cannot be read in columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from enum import IntEnum, auto
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.recordings.json_items import Item
from app.analysis.trace.recordings.profiler.columns import Events, events_of
from app.analysis.trace.recordings.profiler.scan import Activity, Scan

_SHIFT: Final = 23
# Names whose kind is remembered.
_MOST_NAMES: Final = 1 << 16


class Kind(IntEnum):
    """How an event is taken."""

    NOT = auto()
    ALONE = auto()  # as an object
    LAUNCH = auto()
    RANGE = auto()  # of which only the number counts
    OPERATOR = auto()
    GRADIENT = auto()  # a node of autograd
    KERNEL = auto()
    COPY = auto()
    SET = auto()


_ACTIVITIES: Final = {
    Kind.KERNEL: Activity.KERNEL,
    Kind.COPY: Activity.COPY,
    Kind.SET: Activity.SET,
}


class Batches:
    """Takes batches of events into a scan.

    Parameters
    ----------
    kind_of : callable
        Takes an event's category and name.
    take : callable
        Takes one event.
    """

    def __init__(
        self, scan: Scan, kind_of: Callable[[str, str], Kind], take: Callable[[Item], None]
    ) -> None:
        self._scan = scan
        self._kind_of = kind_of
        self._take = take
        self._known: dict[tuple[str, str], Kind] = {}

    def __call__(self, lines: str, count: int, index: int) -> bool:
        """Take lines of one event each; return whether that was possible."""
        events = events_of(lines, count)
        if events is None:
            return False
        kinds = self._kinds(events)
        if not events.usable[kinds > Kind.ALONE].all():
            return False
        alone: Mapping[str, Any]
        for place, alone in events.rows(np.flatnonzero(kinds == Kind.ALONE)):
            self._take(Item(index + place, alone))
        self._add(events, kinds)
        return True

    def _kinds(self, events: Events) -> NDArray[np.int64]:
        pairs = events.category * len(events.names) + events.name
        numbers, places = np.unique(pairs, return_inverse=True)
        kinds = np.empty(len(numbers), np.int64)
        if len(self._known) > _MOST_NAMES:
            self._known.clear()
        for at, number in enumerate(numbers.tolist()):
            category, name = divmod(number, len(events.names))
            key = (events.categories[category], events.names[name])
            kind = self._known.get(key)
            if kind is None:
                kind = self._known[key] = self._kind_of(*key)
            kinds[at] = kind
        found = np.where(events.complete, kinds[places], Kind.NOT)
        return np.where(events.named, Kind.ALONE, found)

    def _add(self, events: Events, kinds: NDArray[np.int64]) -> None:
        scan = self._scan
        correlation, external = events.argument("correlation"), events.argument("External id")
        launches = (kinds == Kind.LAUNCH) & (correlation != -1)
        on_host = (kinds >= Kind.LAUNCH) & (kinds <= Kind.GRADIENT)
        thread = self._threads(events, on_host)
        scan.launches.table.extend(events.start[launches], correlation[launches], thread[launches])
        called = (kinds >= Kind.RANGE) & (kinds <= Kind.GRADIENT)
        named = called & (external != -1)
        scan.operators.table.extend(events.start[named], external[named], thread[named])
        nodes = kinds == Kind.GRADIENT
        scan.gradients.table.extend(events.start[nodes], events.duration[nodes], thread[nodes])
        self._outer(events, (kinds == Kind.OPERATOR) | nodes, thread)
        on_device = kinds >= Kind.KERNEL
        stream = self._streams(events, on_device)
        activity = np.zeros(len(kinds), np.int64)
        for kind, what in _ACTIVITIES.items():
            activity[kinds == kind] = what
        scan.kernels.table.extend(
            events.start[on_device],
            events.duration[on_device],
            correlation[on_device],
            external[on_device],
            np.full(int(on_device.sum()), -1, np.int64),
            stream[on_device],
            activity[on_device],
        )

    def _outer(self, events: Events, chosen: NDArray[np.bool_], thread: NDArray[np.int64]) -> None:
        """Take operators that lie in no other, as `Scan.take_operator` does one by one."""
        for one in np.unique(thread[chosen]).tolist():
            mine = chosen & (thread == one)
            start, duration = events.start[mine], events.duration[mine]
            ends = np.concatenate(
                [[self._scan.busy_until.get(one, int(start[0]))], start + duration]
            )
            latest = np.maximum.accumulate(ends)
            outer = start >= latest[:-1]
            self._scan.outer.table.extend(
                start[outer], duration[outer], np.full(int(outer.sum()), one, np.int64)
            )
            self._scan.busy_until[one] = int(latest[-1])

    def _threads(self, events: Events, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        numbers = np.zeros(len(chosen), np.int64)
        keys = (events.process[chosen] << _SHIFT) | events.thread[chosen]
        values, places = np.unique(keys, return_inverse=True)
        mask = (1 << _SHIFT) - 1
        own = [self._scan.thread((key >> _SHIFT, key & mask)) for key in values.tolist()]
        numbers[chosen] = np.array(own, np.int64)[places]
        return numbers

    def _streams(self, events: Events, chosen: NDArray[np.bool_]) -> NDArray[np.int64]:
        numbers = np.zeros(len(chosen), np.int64)
        device, stream = (events.argument(name)[chosen] for name in ("device", "stream"))
        pairs, places = np.unique(np.stack([device, stream], axis=1), axis=0, return_inverse=True)
        own = [
            self._scan.thread(("stream", *("None" if n == -1 else n for n in pair)))
            for pair in pairs.tolist()
        ]
        numbers[chosen] = np.array(own, np.int64)[places.ravel()]
        return numbers
