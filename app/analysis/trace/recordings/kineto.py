"""Reader of Kineto files, the JSON that PyTorch's profiler writes for each rank, in one pass.

The fields before the events name the rank and its process groups. Scripts that merge the files of
several ranks for a viewer put the rank into the number of a process (``[Rank 3] 4711``,
``4711_rank3``) or into its name (``process_name``, ``process_labels``).
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from app.analysis.trace.limits import MAX_WORLD, Limits, refuse_body
from app.analysis.trace.model import SessionMeta
from app.analysis.trace.recordings.files import UNNAMED, FileNames, rank_in
from app.analysis.trace.recordings.json_events import (
    NS_PER_US,
    Event,
    Field,
    Item,
    event_of,
    read_items,
)
from app.analysis.trace.recordings.kineto_columns import Batches, Kind
from app.analysis.trace.recordings.labels import LOADER_PREFIX, OWN_PREFIX, TORCH_PREFIX, OwnRanges
from app.analysis.trace.recordings.profiler.labelled_pipeline import ATTACH, Advice
from app.analysis.trace.recordings.profiler.process_groups import Group
from app.analysis.trace.recordings.profiler.reader import decode_scan
from app.analysis.trace.recordings.profiler.scan import (
    Activity,
    Issue,
    Mark,
    Scan,
    Span,
    Work,
    collective_of,
    plain_name,
)
from app.analysis.trace.recordings.recording import Recording, joined_recordings

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
_OWN: Final = "user_annotation"
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
# Name of the range that a process group's backend records for each finished collective or transfer.
_BACKEND: Final = re.compile(r"(?:gloo|nccl|mpi|ucc|xccl|hccl):(\w+)(?: \d+->\d+)?")
_STEP: Final = "ProfilerStep#"
_OPTIMIZER: Final = "Optimizer.step#"
# Name of the range in which autograd runs the backward of one graph node.
_GRADIENT: Final = "autograd::engine::evaluate_function"
# Names of calls of collectives: prefix of the calls by PyTorch's dispatcher, and name of the call
# that each backend records.
_ISSUED: Final = "c10d::"
_COMMUNICATES: Final = "record_param_comms"
# Prefixes of framework ranges that identify the parts of a step in a recording without labels.
_MARKS: Final = (
    "DistributedDataParallel.forward",
    "FSDP::",
    "FullyShardedDataParallel.",
    "Optimizer.zero_grad#",
    "## ",
    # `ScheduleGPipe` appends the number of the microbatch to this prefix.
    "Forward ",
    "Backward ",
)
# Prefixes of ranges that are kept as objects; other ranges are only packed into tables.
_ALONE: Final = (
    TORCH_PREFIX,
    OWN_PREFIX,
    LOADER_PREFIX,
    _STEP,
    _OPTIMIZER,
    _ISSUED,
    _COMMUNICATES,
    *_MARKS,
)
_KIND_OF_ACTIVITY: Final = {
    Activity.KERNEL: Kind.KERNEL,
    Activity.COPY: Kind.COPY,
    Activity.SET: Kind.SET,
}
# Number of events between two checks of the memory limits.
_CHECKED_EVERY: Final = 256
_ADVICE: Final = Advice(
    no_labels=(
        "no range is labelled as an operation, and no training of data-parallel ranks without a "
        "pipeline is seen: Schedule1F1B is not labelled by PyTorch, and without CPU activities "
        f"there is no backward. {ATTACH[:1].upper()}{ATTACH[1:]}, which labels "
        'them, or with torch.profiler.record_function("paceline:fwd:mb=0")'
    ),
    unknown_rank=(
        "the recording does not say which rank it is of: start the profiler after "
        "torch.distributed.init_process_group, which writes distributedInfo"
    ),
    no_kernel="profile with activities=[ProfilerActivity.CPU, ProfilerActivity.CUDA]",
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
    processes = Processes()
    scan = scan_kineto(body, limits, own, processes)
    if len(processes.stepping) > 1:
        return _decode_ranks(body, meta, limits, own, processes)
    if scan.rank is None:
        scan.rank = names.rank
    if scan.world is None:
        scan.world = names.world
    return decode_scan(scan, meta, limits, _ADVICE, part=part)


def _decode_ranks(
    body: Path | bytes,
    meta: SessionMeta | None,
    limits: Limits,
    own: OwnRanges | None,
    processes: Processes,
) -> Recording:
    """Decode a file that was merged from the files of several ranks."""
    scans = {rank: Scan(own=None if own is None else own.reader()) for rank in processes.ranks()}
    whole = Scan()
    for item in read_items(body, limits, frozenset({EVENTS})):
        if isinstance(item, Field):
            take_header(whole, item)
            continue
        rank = processes.rank_of(event_of(item.index, item.value))
        if rank in scans:
            _take(scans[rank], item)
            if item.index % _CHECKED_EVERY == 0:
                scans[rank].check_counts(limits)
    recordings = []
    for rank, scan in scans.items():
        scan.base_ns, scan.gpu, scan.rank = whole.base_ns, whole.gpu, rank
        scan.world = len(scans) if whole.world is None else whole.world
        # The fields of a merged file describe only one of its ranks, so the other ranks' process
        # groups are derived from that rank's groups.
        parts = [group for group in whole.groups if 1 < len(group.ranks) < scan.world]
        if all(rank in group.ranks for group in parts):
            scan.groups = whole.groups
        else:
            scan.others_groups = whole.groups
        recordings.append(decode_scan(scan, meta, limits, _ADVICE, part=True))
    return joined_recordings(recordings)


def scan_kineto(
    body: Path | bytes,
    limits: Limits,
    own: OwnRanges | None = None,
    processes: Processes | None = None,
) -> Scan:
    """Return the scan of a Kineto file, and add its steps and process names to `processes`.

    Raises
    ------
    InvalidTraceError
        The text is not JSON, or an event is malformed, with its position.
    BodyTooLargeError
        `body.too_large`, `body.too_many_rows`.
    """
    scan = Scan(own=None if own is None else own.reader())

    def take_batch(lines: str, count: int, index: int) -> bool:
        scan.check_counts(limits)
        return batches(lines, count, index)

    batches = Batches(scan, _kind_of, lambda item: _take(scan, item, processes))
    # Batches skip the names of most ranges, but patterns of the job must be matched against every
    # name.
    batch_taker = take_batch if own is None else None
    for item in read_items(body, limits, frozenset({EVENTS}), batches=batch_taker):
        if isinstance(item, Item):
            _take(scan, item, processes)
            if item.index % _CHECKED_EVERY == 0:
                scan.check_counts(limits)
        else:
            take_header(scan, item)
    scan.check_counts(limits)
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
        if processes is not None and event.text("name").startswith(_STEP):
            processes.step(event)
        _take_annotation(scan, event, category)
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
            scan.works.append(_work(name, args, span, on_device=True))
        correlation, external = _number(args, "correlation"), _number(args, "External id")
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
    if name.startswith(_ALONE) or _BACKEND.fullmatch(name):
        return Kind.ALONE
    if name.startswith(_GRADIENT):
        return Kind.GRADIENT
    return Kind.OPERATOR if category in _OPERATORS else Kind.RANGE


def _take_annotation(scan: Scan, event: Event, category: str) -> None:
    name = event.text("name")
    if scan.own is not None and scan.add_own_range(name, _span(event)):
        return
    if name.startswith((TORCH_PREFIX, OWN_PREFIX, LOADER_PREFIX, _STEP)):
        scan.add_range(name, _span(event), _thread(scan, event))
        return
    if name.startswith(_OPTIMIZER):
        scan.optimizers.append(_span(event))
    elif backend := _BACKEND.fullmatch(name):
        scan.works.append(_work(backend[1], event.args, _span(event), on_device=False))
        return
    elif scan.own is not None and category == _OWN:
        scan.own.miss(name)
    _take_called(scan, event, category)


def _take_called(scan: Scan, event: Event, category: str) -> None:
    """Add an operator, a call of a collective, or a framework range to the scan."""
    name = event.text("name")
    number = event.args.optional_identifier("External id")
    thread = _thread(scan, event)
    if name.startswith(_GRADIENT):
        scan.gradients.add(_span(event), thread)
        scan.add_operator(_span(event), thread)
    elif name.startswith((_ISSUED, _COMMUNICATES)):
        args = event.args
        scan.issues.append(
            Issue(
                plain_name(args.text("Collective name") or name.removeprefix(_ISSUED)),
                args.text("Process Group Name"),
                args.text("Process Group Description"),
                args.optional_integer("Seq"),
                _span(event),
                thread,
                _number(args, "External id"),
                args.optional_integer("Group size"),
                _peer(args),
            )
        )
    elif name.startswith((_OPTIMIZER, *_MARKS)):
        scan.marks.append(Mark(name, _span(event), thread))
    elif category in _OPERATORS:
        scan.add_operator(_span(event), thread)
    if number is not None and not name.startswith(_OPTIMIZER):
        scan.operators.add(event.nanoseconds("ts", NS_PER_US), number, thread)


def _thread(scan: Scan, event: Event) -> int:
    return scan.thread((event.name("pid"), event.name("tid")))


def _work(name: str, args: Event, span: Span, *, on_device: bool) -> Work:
    return Work(
        plain_name(name),
        args.text("Process Group Name"),
        args.text("Process Group Description"),
        args.optional_integer("Seq"),
        span,
        on_device,
        _number(args, "correlation"),
        _number(args, "External id"),
        args.optional_integer("Group size"),
        _peer(args),
    )


def _peer(args: Event) -> int | None:
    ends = (args.optional_integer(key) for key in ("Dst Rank", "Src Rank"))
    # PyTorch records -1 for the recording rank itself.
    return next((rank for rank in ends if rank is not None and rank >= 0), None)


def _number(args: Event, key: str) -> int:
    number = args.optional_identifier(key)
    return -1 if number is None else number


def _span(event: Event) -> Span:
    start = event.nanoseconds("ts", NS_PER_US)
    duration = event.duration_ns("dur", NS_PER_US) if event.fields.get("dur") is not None else 0
    return Span(start, start + duration, event.index)
