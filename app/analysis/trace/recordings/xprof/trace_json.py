"""``trace.json.gz``: what XProf writes next to a file of planes, for a viewer of traces.

Processes are planes, threads are lines. It has at most a million events, the longest ones, and no
time of day.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

from app.analysis.trace.limits import MAX_STEP, Limits
from app.analysis.trace.recordings.json_items import Item, read_items
from app.analysis.trace.recordings.values import NS_PER_US, Event, event_of
from app.analysis.trace.recordings.xprof.collected import Collected
from app.analysis.trace.recordings.xprof.xplane import (
    DEVICE,
    HOST,
    INSTRUCTIONS,
    PROGRAMS,
    STEPS,
    STREAM,
)

EVENTS: Final = "traceEvents"
_MAX_DIGITS: Final = 16
_TEXT: Final = "long_name"


class _Names:
    """Names of processes and threads."""

    def __init__(self) -> None:
        self.processes: dict[int, str] = {}
        self.threads: dict[tuple[int, int], str] = {}
        self.streams: set[int] = set()

    def take(self, event: Event) -> None:
        """Take an event that names a process or a thread."""
        process = event.optional_integer("pid")
        name = event.args.fields.get("name")
        if process is None or not isinstance(name, str):
            return
        if event.fields.get("name") == "process_name":
            self.processes[process] = name
        elif event.fields.get("name") == "thread_name":
            thread = event.optional_integer("tid")
            if thread is not None:
                self.threads[process, thread] = name
            if name.startswith(STREAM):
                self.streams.add(process)

    def is_instructions(self, process: int, line: str) -> bool:
        """Return whether a line has what a device ran."""
        return line.startswith(STREAM) if process in self.streams else line == INSTRUCTIONS


def read_trace_json(body: Path | bytes, limits: Limits) -> Collected:
    """Read a trace for a viewer.

    Raises
    ------
    InvalidTraceError, BodyTooLargeError
        See `read_items` and `Event`.
    """
    found, names = Collected(limits), _Names()
    for item in read_items(body, limits, frozenset({EVENTS})):
        if not isinstance(item, Item):
            continue
        event = event_of(item.index, item.value)
        if event.fields.get("ph") == "M":
            names.take(event)
        elif event.fields.get("ph") == "X":
            _take(event, names, found)
    return found


def _take(event: Event, names: _Names, found: Collected) -> None:
    process, thread = event.integer("pid"), event.integer("tid")
    plane = names.processes.get(process, "")
    line = names.threads.get((process, thread), "")
    device = DEVICE.search(plane)
    name, args = event.text("name"), event.args
    start = event.nanoseconds("ts", NS_PER_US)
    end = start + (event.duration_ns("dur", NS_PER_US) if "dur" in event.fields else 0)
    if device is not None:
        ordinal = int(device[1])
        if line == STEPS:
            if name.isascii() and name.isdecimal() and len(name) < _MAX_DIGITS:
                found.add_step(ordinal, start, int(name))
        elif line == PROGRAMS:
            found.add_program(ordinal, start, end, name)
        elif names.is_instructions(process, line):
            text = args.fields.get(_TEXT)
            kind = found.kind_of(text if isinstance(text, str) and text else name)
            found.add(ordinal, kind, start, end, None)
    elif HOST in plane:
        number = args.optional_integer("step_num") if "step_num" in args.fields else None
        if number is not None and 0 <= number <= MAX_STEP:
            found.annotate(start, number)
        elif "hlo_op" in args.fields and "device_ordinal" in args.fields:
            ordinal_said = args.optional_integer("device_ordinal")
            run = args.optional_integer("run_id")
            if ordinal_said is not None and ordinal_said >= 0:
                found.add(ordinal_said, found.kind_of(name), start, end, run)
