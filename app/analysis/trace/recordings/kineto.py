"""Reader of Kineto files, the JSON that PyTorch's profiler writes for each rank, in one pass.

The fields before the events name the rank and its process groups. Scripts that merge the files of
several ranks for a viewer put the rank into the number of a process (``[Rank 3] 4711``,
``4711_rank3``) or into its name (``process_name``, ``process_labels``).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from app.analysis.trace.limits import MAX_TIME_NS, MAX_WORLD, Limits, refuse_body
from app.analysis.trace.metadata import Unmapped, total
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.annotations import (
    OPTIMIZER_STEP,
    STEP,
    add_annotation,
    identifier,
    kind_of_range,
    work_of,
)
from app.analysis.trace.recordings.events import NS_PER_US, Event, event_of
from app.analysis.trace.recordings.files import UNNAMED, FileNames, rank_in
from app.analysis.trace.recordings.json_events import Field, Item, Skipped, read_items
from app.analysis.trace.recordings.kineto_columns import Batches, Kind, events_of
from app.analysis.trace.recordings.labels import OwnRanges
from app.analysis.trace.recordings.profiler.contents import Gap, NameCounter, Names
from app.analysis.trace.recordings.profiler.labelled_pipeline import ATTACH, Advice
from app.analysis.trace.recordings.profiler.process_groups import Group
from app.analysis.trace.recordings.profiler.reader import decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Scan,
    Span,
    collective_of,
)
from app.analysis.trace.recordings.recording import Recording, joined_recordings
from app.errors import InvalidTraceError

# Maximum number of processes of one file. A file for a viewer has some dozens of processes, a
# machine has thousands.
_MOST: Final = 100_000
_NAMES: Final = ("process_name", "process_labels")
_BRACKETED: Final = re.compile(r"\[(?:R|rank)?[ =]?([0-9]{1,7})\]", re.IGNORECASE)


@dataclass(slots=True)
class Processes:
    """Processes of a recording: their ranks, and the processes that run training steps."""

    # Processes that run training steps, in recorded order (a dict used as an ordered set).
    stepping: dict[object, None] = field(default_factory=dict)
    _rank_of: dict[object, int] = field(default_factory=dict)

    def name(self, event: Event) -> None:
        """Store the rank from a process name, which a metadata event (``"ph": "M"``) gives."""
        if event.fields.get("name") not in _NAMES or len(self._rank_of) >= _MOST:
            return
        args = event.args.fields
        rank = _rank_of_process(str(args.get("name", args.get("labels", ""))))
        if rank is not None:
            self._rank_of.setdefault(event.name("pid"), rank)

    def step(self, event: Event) -> None:
        """Store the process that recorded a training step."""
        if len(self.stepping) < _MOST:
            self.stepping.setdefault(event.name("pid"))

    def rank_of(self, event: Event) -> int | None:
        """Return the rank of an event's process; None if it is unknown."""
        key = event.name("pid")
        if key not in self._rank_of and isinstance(key, str):
            rank = _rank_of_process(key)
            if rank is not None and len(self._rank_of) < _MOST:
                self._rank_of[key] = rank
        return self._rank_of.get(key)

    def ranks(self) -> tuple[int, ...]:
        """Return the ranks of the processes that run training steps.

        Raises
        ------
        InvalidTraceError
            `trace.several_ranks`: the rank of a process is unknown, or two processes have the same
            rank.
        """
        named = [self.rank_of(Event(0, {"pid": key})) for key in self.stepping]
        ranks = sorted({rank for rank in named if rank is not None})
        if len(ranks) < len(named):
            refuse_body(
                "several_ranks",
                f"{len(named)} processes take steps, and their numbers or names do not say which "
                "rank each is: send the file of each rank as the profiler wrote it",
            )
        return tuple(ranks)


def _rank_of_process(text: str) -> int | None:
    """Return the rank in a process's number or name; None if neither has a rank."""
    rank = rank_in(text)
    if rank is None and (bracketed := _BRACKETED.search(text)) is not None:
        return int(bracketed[1])
    return rank


EVENTS: Final = "traceEvents"
DISTRIBUTED: Final = "distributedInfo"
_MAX_GROUPS: Final = 4096
# Maximum number of characters of a process group's ranks if they are written as a text.
_MAX_RANKS_TEXT: Final = 1 << 20
_MAX_DIGITS: Final = 12


def take_header(scan: Scan, part: Field) -> None:
    """Add a field of the file other than the array of events to the scan.

    Raises
    ------
    InvalidTraceError
        `trace.bad_event`, `trace.wrong_type`, `trace.time_overflow`.
    """
    if part.name == EVENTS:
        refuse_body("bad_event", f"{EVENTS} is no array of events")
    if part.name == "baseTimeNanoseconds":
        if isinstance(part.value, bool) or not isinstance(part.value, int):
            refuse_body("wrong_type", "baseTimeNanoseconds is not an integer")
        if abs(part.value) >= 1 << 62:
            refuse_body("time_overflow", "baseTimeNanoseconds is beyond all times")
        scan.base_ns = part.value
    elif part.name == "host_name" and isinstance(part.value, str):
        scan.host = part.value
    elif part.name == "deviceProperties" and isinstance(part.value, list) and part.value:
        first = part.value[0]
        name = first.get("name") if isinstance(first, dict) else None
        scan.gpu = name if isinstance(name, str) else None
    elif part.name == DISTRIBUTED and isinstance(part.value, dict):
        info = Event(0, part.value)
        scan.rank = info.optional_integer("rank")
        scan.world = info.optional_integer("world_size")
        scan.groups = _groups(part.value.get("pg_config"))


def _groups(config: Any) -> list[Group]:  # noqa: ANN401 - untrusted JSON
    """Return the well-formed process groups in the field ``pg_config``."""
    if isinstance(config, dict):
        config = list(config.values())
    if not isinstance(config, list):
        return []
    if len(config) > _MAX_GROUPS:
        refuse_body("bad_event", f"{DISTRIBUTED} lists over {_MAX_GROUPS} process groups")
    groups = []
    for entry in config:
        if not isinstance(entry, dict):
            continue
        ranks = _ranks(entry.get("ranks"))
        name, description = entry.get("pg_name", ""), entry.get("pg_desc", "")
        if not (isinstance(ranks, list) and isinstance(name, str) and isinstance(description, str)):
            continue
        if all(type(rank) is int and 0 <= rank < MAX_WORLD for rank in ranks):
            groups.append(Group(name, description, tuple(ranks)))
    return groups


def _ranks(ranks: Any) -> Any:  # noqa: ANN401 - untrusted JSON
    """Return the ranks of a process group as a list.

    The file may give them as a list, as a text, or as a map of rank to position.
    """
    if isinstance(ranks, str) and len(ranks) <= _MAX_RANKS_TEXT:
        numbers = ranks.strip("[]() ").split(",")
        return [int(number) for number in numbers] if all(map(_is_rank, numbers)) else None
    if isinstance(ranks, dict) and all(map(_is_rank, ranks)):
        in_order = all(type(place) is int for place in ranks.values())
        return [int(rank) for rank in (sorted(ranks, key=ranks.__getitem__) if in_order else ranks)]
    return ranks


def _is_rank(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdecimal() and len(text) <= _MAX_DIGITS


_ANNOTATIONS: Final = frozenset({"user_annotation", "cpu_op", "Operator"})
# Category of a user annotation's copy on the device's track, which lasts from the first to the last
# kernel launched in the annotation.
_OWN_ON_DEVICE: Final = "gpu_user_annotation"
_OPERATORS: Final = frozenset({"cpu_op", "Operator"})
_LAUNCHES: Final = frozenset(
    {
        *("cuda_runtime", "cuda_driver", "Runtime", "xpu_runtime", "xpu_driver"),
        *("privateuse1_runtime", "privateuse1_driver", "mtia_runtime"),
    }
)
# Event categories of work on a device stream.
_ACTIVITIES: Final = {
    **dict.fromkeys(("kernel", "Kernel"), Activity.KERNEL),
    **dict.fromkeys(("gpu_memcpy", "Memcpy"), Activity.COPY),
    **dict.fromkeys(("gpu_memset", "Memset"), Activity.SET),
}
_KERNELS: Final = frozenset({"kernel", "Kernel"})
# Event categories of what the host does, which may explain a gap of the device.
_ON_HOST: Final = _OPERATORS | _LAUNCHES | {"python_function", "user_annotation"}
_KIND_OF_ACTIVITY: Final = {
    Activity.KERNEL: Kind.KERNEL,
    Activity.COPY: Kind.COPY,
    Activity.SET: Kind.SET,
}
# Number of events between two checks of the memory limits.
_CHECKED_EVERY: Final = 256
_ADVICE: Final = Advice(
    no_labels=(
        f"{ATTACH[:1].upper()}{ATTACH[1:]}, which labels them, or with "
        'torch.profiler.record_function("paceline:fwd:mb=0")'
    ),
    unknown_rank=(
        "the recording does not say which rank it is of: start the profiler after "
        "torch.distributed.init_process_group, which writes distributedInfo, or name the file by "
        "its rank, rank0.json. A job of one rank has a metadata file with dp: 1 and pp: 1 (--meta)"
    ),
    no_kernel="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
    host_events="Profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
)


def decode_kineto(  # noqa: PLR0913 - a sender's facts about a file
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    *,
    part: bool,
    own: OwnRanges | None = None,
    names: FileNames = UNNAMED,
) -> Recording:
    """Decode a Kineto file and check its values.

    Parameters
    ----------
    body : Path or bytes
        Plain, gzip or zstd.
    meta : SessionMeta or None
        The session's metadata; needed if the names of process groups do not imply the sizes.
    part : bool
        The file is one rank of several.
    own : OwnRanges, optional
        The job's labels for ranges of its own.
    names : FileNames
        Rank and world size from the files' names, used if the file itself lacks them.

    Raises
    ------
    InvalidTraceError, InvalidMetadataError, BodyTooLargeError
        See `scan_kineto` and `decode_scan`.
    """
    processes, skipped = Processes(), skipping()
    scan = scan_kineto(body, limits, own, processes, skipped)
    if len(processes.stepping) > 1:
        recording = _decode_ranks(body, meta, limits, own, processes)
    else:
        recording = _decode_rank(scan, body, meta, limits, names, part=part)
    counts = {_FAULTY: skipped.count, _NOT_UTF8: skipped.replaced}
    lost = [Unmapped(what, count, None) for what, count in counts.items() if count]
    return replace(recording, unmapped=total((*recording.unmapped, *lost))) if lost else recording


_NOT_UTF8: Final = "characters of names that are not UTF-8"
_FAULTY: Final = "faulty events, such as those with a name whose quotes are not escaped"


# Codes of faults of single events.
_FAULTS: Final = frozenset(
    f"trace.{code}"
    for code in (
        *("bad_event", "missing_key", "wrong_type"),
        *("not_finite", "time_overflow", "integer_overflow"),
    )
)


@contextmanager
def tolerating(skipped: Skipped | None) -> Iterator[None]:
    """Leave out an event whose fields are malformed."""
    try:
        yield
    except InvalidTraceError as error:
        if skipped is None or error.stable_code not in _FAULTS:
            raise
        skipped.leave_out(error)


def skipping() -> Skipped:
    """Return a counter of the faulty events of a file."""
    return Skipped(key="ph")


def _decode_rank(  # noqa: PLR0913 - facts of the file
    scan: Scan,
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    names: FileNames,
    *,
    part: bool,
) -> Recording:
    """Decode the file of one rank."""
    if scan.rank is None:
        scan.rank = names.rank
    if scan.world is None:
        scan.world = names.world
    return decode_scan(scan, meta, limits, _ADVICE, part=part, find_names=_Names(body, limits))


@dataclass(frozen=True, slots=True)
class _Names:
    """Finder of the names in a file: see `FindNames`."""

    body: Path | bytes
    limits: Limits

    def __call__(self, gaps: Sequence[Gap], on_device: bool) -> Names:  # noqa: FBT001 - a `FindNames`
        counter, skipped = NameCounter(gaps), skipping()
        counted = _KERNELS if on_device else _OPERATORS

        def take_batch(lines: str, count: int, _index: int) -> bool:
            events = events_of(lines, count)
            if events is None:
                return False
            chosen = events.complete & events.of_categories(counted)
            calls = np.bincount(events.name[chosen], minlength=len(events.names))
            totals = np.bincount(events.name[chosen], events.duration[chosen], len(events.names))
            for number in np.flatnonzero(calls).tolist():
                counter.count(events.names[number], int(calls[number]), int(totals[number]))
            ends = events.start + np.clip(events.duration, 0, MAX_TIME_NS >> 1)
            on_host = events.complete & events.usable & events.of_categories(_ON_HOST)
            for row in np.flatnonzero(on_host)[
                counter.in_gaps(events.start[on_host], ends[on_host])
            ]:
                name, category = events.name[row], events.categories[events.category[row]]
                start, end = int(events.start[row]), int(ends[row])
                counter.call(events.names[name], start, end, runtime=category in _LAUNCHES)
            return True

        arrays = frozenset({EVENTS})
        for item in read_items(self.body, self.limits, arrays, batches=take_batch, skipped=skipped):
            if isinstance(item, Field):
                continue
            with tolerating(skipped):
                event = event_of(item.index, item.value)
                category = event.text("cat")
                if event.fields.get("ph") != "X" or category not in counted | _ON_HOST:
                    continue
                name, span = event.text("name"), _span(event)
                if category in counted:
                    counter.count(name, 1, span.end - span.start)
                if category in _ON_HOST and not name.startswith(STEP):
                    counter.call(name, span.start, span.end, runtime=category in _LAUNCHES)
        return counter.names()


def _decode_ranks(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    own: OwnRanges | None,
    processes: Processes,
) -> Recording:
    """Decode a file that was merged from the files of several ranks."""
    scans = {rank: Scan(own=None if own is None else own.reader()) for rank in processes.ranks()}
    whole, skipped = Scan(), skipping()
    for item in read_items(body, limits, frozenset({EVENTS}), skipped=skipped):
        if isinstance(item, Field):
            take_header(whole, item)
            continue
        with tolerating(skipped):
            rank = processes.rank_of(event_of(item.index, item.value))
            if rank not in scans:
                continue
            _take(scans[rank], item)
            if item.index % _CHECKED_EVERY == 0:
                scans[rank].check_counts(limits)
    recordings = []
    for rank, scan in scans.items():
        scan.use_nodes()
        scan.base_ns, scan.gpu, scan.rank = whole.base_ns, whole.gpu, rank
        scan.world = len(scans) if whole.world is None else whole.world
        # The fields of a merged file describe only one of its ranks, so the other ranks' process
        # groups are derived from that rank's groups.
        parts = [group for group in whole.groups if 1 < len(group.ranks) < scan.world]
        if all(rank in group.ranks for group in parts):
            scan.groups = whole.groups
        else:
            scan.others_groups = whole.groups
        recordings.append(
            decode_scan(scan, meta, limits, _ADVICE, part=True, find_names=_Names(body, limits))
        )
    return joined_recordings(recordings)


def scan_kineto(
    body: Path | bytes,
    limits: Limits,
    own: OwnRanges | None = None,
    processes: Processes | None = None,
    skipped: Skipped | None = None,
) -> Scan:
    """Return the scan of a Kineto file, and add its steps and process names to `processes`.

    Faulty events are left out and counted in `skipped`, if it is given.

    Raises
    ------
    InvalidTraceError
        The text is not JSON; an event, or many events, are malformed, with the first position.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    scan = Scan(own=None if own is None else own.reader())

    def take(item: Item) -> None:
        with tolerating(skipped):
            _take(scan, item, processes)

    def take_batch(lines: str, count: int, index: int) -> bool:
        scan.check_counts(limits)
        return batches(lines, count, index)

    batches = Batches(scan, _kind_of, take)
    # Batches skip the names of most ranges, but patterns of the job must be matched against every
    # name.
    batch_taker = take_batch if own is None else None
    arrays = frozenset({EVENTS})
    for item in read_items(body, limits, arrays, batches=batch_taker, skipped=skipped):
        if isinstance(item, Item):
            take(item)
            if item.index % _CHECKED_EVERY == 0:
                scan.check_counts(limits)
        else:
            take_header(scan, item)
    if skipped is not None:
        skipped.check()
    scan.check_counts(limits)
    scan.use_nodes()
    return scan


def _take(scan: Scan, item: Item, processes: Processes | None = None) -> None:
    """Add one event to the scan."""
    event = event_of(item.index, item.value)
    phase = event.fields.get("ph")
    if phase == "M" and processes is not None:
        processes.name(event)
    if phase != "X":
        return
    category = event.text("cat")
    if category in _ANNOTATIONS:
        name = event.text("name")
        if processes is not None and name.startswith((STEP, OPTIMIZER_STEP)):
            processes.step(event)
        operator = category in _OPERATORS
        thread = _thread(scan, event)
        add_annotation(scan, name, _span(event), thread, event.args, operator=operator)
    elif category in _LAUNCHES:
        number = event.args.optional_identifier("correlation")
        if number is not None:
            scan.launches.add(event.nanoseconds("ts", NS_PER_US), number, _thread(scan, event))
    elif category in _ACTIVITIES:
        activity = _ACTIVITIES[category]
        args, span = event.args, _span(event)
        work = -1
        collective = collective_of(event.text("name")) if activity is Activity.KERNEL else None
        if collective is not None:
            work = len(scan.works)
            name = args.text("Collective name") or collective
            scan.works.append(work_of(name, args, span, on_device=True))
        correlation, external = identifier(args, "correlation"), identifier(args, "External id")
        at = scan.thread(("stream", args.name("device"), args.name("stream")))
        scan.kernels.add(span, correlation, external, work, at, activity)
    elif category == _OWN_ON_DEVICE:
        scan.add_own_range(event.text("name"), _span(event), on_device=True)


def _kind_of(category: str, name: str) -> Kind:
    """Return the kind of an event from its category and name, by the same rules as `_take`."""
    if category in _LAUNCHES:
        return Kind.LAUNCH
    activity = _ACTIVITIES.get(category)
    if activity is not None:
        collective = activity is Activity.KERNEL and collective_of(name) is not None
        return Kind.ALONE if collective else _KIND_OF_ACTIVITY[activity]
    if category not in _ANNOTATIONS:
        return Kind.NOT
    return kind_of_range(name, operator=category in _OPERATORS)


def _thread(scan: Scan, event: Event) -> int:
    return scan.thread((event.name("pid"), event.name("tid")))


def _span(event: Event) -> Span:
    start = event.nanoseconds("ts", NS_PER_US)
    duration = event.duration_ns("dur", NS_PER_US) if event.fields.get("dur") is not None else 0
    return Span(start, start + duration, event.index)
