"""Dumps of PyTorch's flight recorder: the collectives that each rank has not completed.

`_dump_nccl_trace` writes a pickle, `_dump_nccl_trace_json` JSON, of the same fields
(torch/csrc/distributed/c10d/FlightRecorder.hpp). Groups have names, which all ranks share, and
numbers, which differ from rank to rank.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Final

from pydantic import AliasChoices, BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from app.analysis.hangs.state import (
    NO_TENSORS,
    Frame,
    Group,
    JobState,
    Pending,
    RankState,
    Reached,
    Tensors,
)
from app.errors import Fault, InvalidTraceError
from app.hangs.plain_pickle import plain_pickle

_PICKLE: Final = b"\x80"
_COMPLETED: Final = "completed"
_COALESCED: Final = "coalesced"
_NCCL: Final = "nccl:"
DEFAULT_GROUP: Final = "default_pg"
# Description that PyTorch writes for a process group without a description.
_UNDESCRIBED: Final = "undefined"
# Names of transfers, such as "nccl:send 0->3" or "gloo:recv 0<-3"; the numbers are ranks within the
# group.
_TRANSFER: Final = re.compile(r"(?:send|recv|isend|irecv)\s*(\d+)\s*(->|<-)\s*(\d+)$")
MOST_RANKS: Final = 1 << 20
# Largest number of entries in a dump. A recorder holds a few thousand entries, and completed
# entries are left out.
_MOST_ENTRIES: Final = 1 << 16
_MOST_GROUPS: Final = 1 << 16
# Largest number of pending operations that are kept for a rank, since the rank waits for the first
# of them.
_MOST_PENDING: Final = 256
# Largest number of ranks in all groups together: four times that of 16,384 ranks in 64 groups each.
_MOST_MEMBERS: Final = 1 << 22
_PAIR: Final = 2
# Largest numbers of tensors of an operation, and of frames of a stack from the innermost on.
_MOST_TENSORS: Final = 64
MOST_FRAMES: Final = 40
_MOST_DIMENSIONS: Final = 64
_LONGEST_NAME: Final = 512
_LONGEST_INTEGER: Final = len(str(-(1 << 63)))
_INVALID: Final = "hang.invalid_dump"


def _int64(text: str) -> int:
    """Return the integer that JSON spells; refuse an integer beyond 64 bits."""
    # The length is checked first, because many digits are expensive to convert.
    if len(text) > _LONGEST_INTEGER or not -(1 << 63) <= (number := int(text)) < 1 << 63:
        shown = text if len(text) <= 2 * _LONGEST_INTEGER else f"{text[:_LONGEST_INTEGER]}…"
        message = f"It is no dump of a flight recorder: the integer {shown} is beyond 64 bits"
        raise InvalidTraceError(message, code=_INVALID, faults=(Fault(_INVALID, message),))
    return number


def _ranks_of(value: object) -> object:
    """Return the ranks in a text such as "[0, 1]", which pickles have instead of a list."""
    if not isinstance(value, str):
        return value
    return [int(number) for number in re.findall(r"\d{1,9}", value)[:MOST_RANKS]]


Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
# An integer within 64 bits. Python hashes integers modulo 2^61 - 1: larger integers may have equal
# hashes, and a dictionary of n such keys takes n² steps to build.
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Size = Annotated[tuple[Int64, ...], Field(max_length=_MOST_DIMENSIONS)]


class Written(BaseModel):
    """Base of models for documents that other programs write; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def invalid(
    error: ValidationError, code: str, what: str, whole: str, before: Sequence[str] = ()
) -> InvalidTraceError:
    """Return the error for a document that does not match its model.

    Parameters
    ----------
    what, whole : str
        Start of the sentence, such as "It is no dump", and name of the whole document.
    before : sequence of str, optional
        Place of the value in the document.
    """
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join((*before, *map(str, first["loc"]))) or whole
    message = f"{what}: {place}: {first['msg']}"
    return InvalidTraceError(message, code=code, faults=(Fault(code, message),))


class _Group(Written):
    desc: Name = ""
    ranks: Annotated[tuple[Int64, ...], BeforeValidator(_ranks_of)] = Field(max_length=MOST_RANKS)


class _Status(Written):
    last_enqueued_collective: Int64 = -1
    last_completed_collective: Int64 = -1


def _pair(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) != _PAIR:
        raise ValueError("it has a name and a description")
    return value


class _Entry(Written):
    pg_id: Int64 = -1
    process_group: Annotated[tuple[Name, Name], BeforeValidator(_pair)] = ("", "")
    record_id: Int64 = 0
    # PyTorch before 2.4 writes "seq_id"
    collective_seq_id: Int64 = Field(
        0, validation_alias=AliasChoices("collective_seq_id", "seq_id")
    )
    p2p_seq_id: Int64 = 0
    profiling_name: Name = ""
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    time_created_ns: Int64 | None = None
    # Read by `_Details` for pending operations only: a small pickle may repeat a long list often.
    input_sizes: object = ()
    output_sizes: object = ()
    input_dtypes: object = ()
    output_dtypes: object = ()
    frames: object = ()

    @property
    def key(self) -> tuple[tuple[str, str], bool, int]:
        """Return group and number, which the members of a batch share."""
        number = self.p2p_seq_id if self.is_p2p else self.collective_seq_id
        return self.process_group, self.is_p2p, number

    @property
    def is_batch(self) -> bool:
        """Return whether the entry ends a batch of operations."""
        return self.profiling_name.endswith(_COALESCED)


def _beginning(most: int) -> BeforeValidator:
    """Return a validator that keeps the first `most` members of a list."""
    return BeforeValidator(lambda value: value[:most] if isinstance(value, list | tuple) else value)


class RecordedFrame(Written):
    """A frame of a stack as recorders and py-spy write it."""

    name: str
    filename: str
    short_filename: str | None = None
    line: Int64

    @property
    def frame(self) -> Frame:
        """Return the frame, its file without the folder of the installation if that is known."""
        return Frame(self.name, self.short_filename or self.filename, self.line)


class _Details(Written):
    input_sizes: Annotated[tuple[_Size, ...], _beginning(_MOST_TENSORS)] = ()
    output_sizes: Annotated[tuple[_Size, ...], _beginning(_MOST_TENSORS)] = ()
    input_dtypes: Annotated[tuple[Name, ...], _beginning(_MOST_TENSORS)] = ()
    output_dtypes: Annotated[tuple[Name, ...], _beginning(_MOST_TENSORS)] = ()
    frames: Annotated[tuple[RecordedFrame, ...], _beginning(MOST_FRAMES)] = ()


def _bounded(value: object) -> object:
    """Refuse groups with too many ranks in total, since a small pickle may expand to many."""
    if isinstance(value, dict):
        members = sum(
            len(ranks)
            for group in value.values()
            if isinstance(group, dict)
            and isinstance(ranks := group.get("ranks"), str | list | tuple)
        )
        if members > _MOST_MEMBERS:
            raise ValueError(f"its groups have more than {_MOST_MEMBERS} ranks together")
    return value


class _Ring:
    """The entries of a dump as decoded, before their values are checked.

    Entries that are over are left out, but for one of each group, which names the group. Over are
    completed operations, and members of a batch whose ``coalesced`` entry is completed: their own
    state stays ``scheduled`` for ever (pytorch#137969). An operation of NCCL that retires without
    completing, or completes after its timeout, was aborted by the watchdog, so it is not over.
    """

    def __init__(self, entries: Sequence[object]) -> None:
        self.used: list[object] = []
        # By name of a group with transfers: the number of the last enqueued collective. The
        # status of such a group has the number of a collective or of a transfer.
        self.collectives: dict[str, int] = {}
        # By group and name of a finished transfer: its last two numbers.
        self.finished: dict[tuple[str, str], tuple[int, ...]] = {}
        self._batches = set[object]()
        self._aborted: dict[tuple[object, ...], int] = {}
        dicts = [entry for entry in entries if isinstance(entry, dict)]
        for written in dicts:
            name, key = written.get("profiling_name"), _batch_of(written)
            is_over = written.get("state") == _COMPLETED and key is not None
            if is_over and isinstance(name, str) and name.endswith(_COALESCED):
                self._batches.add(key)
        self._number_collectives(dicts)
        seen = set[object]()
        for entry in entries:
            if not isinstance(entry, dict):
                self.used.append(entry)
            elif not self._is_over(entry):
                is_aborted = entry.get("state") == _COMPLETED
                state = "aborted" if is_aborted else entry.get("state", "")
                self.used.append({**entry, "state": state, "retired": False})
            else:
                self._finish(entry)
                if (key := _group_of(entry)) is None or key not in seen:
                    seen.add(key)
                    self.used.append({**entry, "state": _COMPLETED})

    def _finish(self, entry: Mapping[str, object]) -> None:
        """Keep the number of a finished transfer."""
        group, name = _group_of(entry), entry.get("profiling_name")
        number = entry.get("p2p_seq_id")
        if (
            group is None
            or not isinstance(of := group[1], str)
            or not isinstance(name, str)
            or not isinstance(number, int)
            or not (transfer := _TRANSFER.search(name))
        ):
            return
        key = of, transfer[0]
        last = self.finished.get(key, ())
        if last[-1:] != (number,):
            self.finished[key] = (*last[-1:], number)

    def _number_collectives(self, entries: Sequence[Mapping[str, object]]) -> None:
        last: dict[str, int] = {}
        transfers = set[str]()
        for entry in entries:
            key, number = _group_of(entry), entry.get("collective_seq_id")
            if key is None or not isinstance(name := key[1], str):
                continue
            if entry.get("is_p2p"):
                transfers.add(name)
            elif isinstance(number, int):
                last[name] = max(last.get(name, number), number)
        self.collectives = {name: last[name] for name in transfers if name in last}

    def _is_over(self, entry: Mapping[str, object]) -> bool:
        name, state = entry.get("profiling_name"), entry.get("state")
        is_nccl = isinstance(name, str) and name.startswith(_NCCL)
        if state != _COMPLETED:
            # Other recorders keep the state "scheduled" of completed operations.
            return bool(entry.get("retired") and not is_nccl) or _batch_of(entry) in self._batches
        created, completed = entry.get("time_created_ns"), entry.get("time_discovered_completed_ns")
        timeout = entry.get("timeout_ms")
        key = _group_of(entry)
        if (
            key is None
            or not is_nccl
            or not isinstance(created, int)
            or not isinstance(completed, int)
            or not isinstance(timeout, int)
        ):
            return True
        if 0 < timeout <= (completed - created) / 1e6:
            self._aborted.setdefault(key, completed)
        # An abort ends the later operations of the group too.
        return completed < self._aborted.get(key, completed + 1)


def _group_of(entry: Mapping[str, object]) -> tuple[object, ...] | None:
    """Return what identifies the group of an entry as decoded; None if it names none."""
    group = entry.get("process_group")
    names = tuple(group) if isinstance(group, list | tuple) and len(group) == _PAIR else ("", "")
    key = entry.get("pg_id"), *names, entry.get("is_p2p")
    return key if all(isinstance(part, str | int | None) for part in key) else None


def _batch_of(entry: Mapping[str, object]) -> tuple[object, ...] | None:
    """Return what identifies the batch of an entry as decoded; None if it is in none."""
    group = _group_of(entry)
    number = entry.get("p2p_seq_id" if entry.get("is_p2p") else "collective_seq_id")
    return (*group, number) if group is not None and isinstance(number, int) else None


class _Dump(Written):
    pg_config: Annotated[dict[str, _Group], BeforeValidator(_bounded)] = Field(
        max_length=_MOST_GROUPS
    )
    pg_status: dict[Int64, _Status] = Field(default_factory=dict, max_length=_MOST_GROUPS)
    entries: tuple[_Entry, ...] = Field(default=(), max_length=_MOST_ENTRIES)


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group in a rank's dump; `ranks` is None if the recorder does not list them."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation that a rank has enqueued but not completed.

    Parameters
    ----------
    collective, transfer : int
        Sequence number among the collectives, and among the sends and receives, of its group.
    size : tuple of int
        Shape of the first input, for servers before 0.3.0, which read stored files too.
    is_transfer : bool
        Whether it is a transfer or a batch of them, also if its name does not say the ranks.
    """

    group: str
    name: str
    collective: int
    transfer: int
    size: tuple[int, ...]
    since_ns: int | None
    tensors: Tensors = NO_TENSORS
    has_started: bool | None = None
    is_transfer: bool = False
    called_at: tuple[Frame, ...] = ()


@dataclass(frozen=True, slots=True)
class FinishedTransfer:
    """The last two numbers of a rank's finished transfers of one name, such as ``send 0->3``."""

    group: str
    name: str
    numbers: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class RecordedDump:
    """The content of a dump that is used: groups, pending operations, and progress by group.

    Parameters
    ----------
    reached : mapping of str to Reached
        By the name of a group.
    finished : tuple of FinishedTransfer
        The last transfers that are over, of each peer and direction.
    is_log : bool
        Whether it was read from the log of a watchdog, which has numbers only.
    """

    groups: tuple[RecordedGroup, ...]
    pending: tuple[RecordedOperation, ...]
    reached: Mapping[str, Reached]
    is_log: bool = False
    finished: tuple[FinishedTransfer, ...] = ()

    def without_tensors(self) -> RecordedDump:
        """Return the dump without sizes and types, which are then not compared."""
        pending = (replace(operation, tensors=NO_TENSORS) for operation in self.pending)
        return replace(self, pending=tuple(pending))


def read_dump(body: bytes) -> RecordedDump:
    """Return the content that is used of a rank's dump, a pickle or JSON.

    Raises
    ------
    InvalidTraceError
        The body is no dump.
    """
    if body.startswith(_PICKLE):
        value = plain_pickle(body)
    else:
        try:
            value = json.loads(body, parse_int=_int64)
        except (ValueError, RecursionError) as error:
            raise InvalidTraceError(
                f"It is neither a pickle nor JSON: {error}", code=_INVALID
            ) from error
    ring = _Ring(())
    if isinstance(value, dict) and isinstance(entries := value.get("entries"), list | tuple):
        ring = _Ring(entries)
        value = {**value, "entries": ring.used}
    try:
        dump = _Dump.model_validate(value)
        pending = _operations(dump.entries)
    except ValidationError as error:
        what = "It is no dump of a flight recorder"
        raise invalid(error, _INVALID, what, "the dump") from error
    groups = {
        name: RecordedGroup(name, group.desc, group.ranks)
        for name, group in dump.pg_config.items()
        if group.ranks
    }
    for name, description in dict.fromkeys(entry.process_group for entry in dump.entries):
        groups.setdefault(name, RecordedGroup(name, description, None))
    names = _group_names(dump)
    reached = {
        names[number]: Reached(status.last_enqueued_collective, status.last_completed_collective)
        for number, status in dump.pg_status.items()
        if names.get(number) in groups
    }
    for name, number in ring.collectives.items():
        if name in groups:
            reached[name] = Reached(number, reached[name].completed if name in reached else -1)
    finished = tuple(
        FinishedTransfer(group, name, numbers)
        for (group, name), numbers in ring.finished.items()
        if group in groups
    )
    return RecordedDump(tuple(groups.values()), pending, reached, finished=finished)


def _operations(entries: Sequence[_Entry]) -> tuple[RecordedOperation, ...]:
    """Return the first pending operations; collectives of one batch are one operation.

    Raises
    ------
    ValidationError
        The sizes, types or frames of an operation are none.
    """
    pending = sorted(
        (entry for entry in entries if entry.state != _COMPLETED and not entry.retired),
        key=lambda entry: entry.record_id,
    )
    batches = {entry.key for entry in pending if entry.is_batch}
    transfers = {entry.key for entry in pending if entry.is_p2p and not entry.is_batch}
    members: dict[object, list[_Entry]] = {}
    for place, entry in enumerate(pending):
        if entry.is_batch and entry.key in transfers:
            continue  # each of its transfers is an operation
        is_together = entry.key in batches and not entry.is_p2p
        members.setdefault(entry.key if is_together else place, []).append(entry)
        if len(members) > _MOST_PENDING:
            break
    operations: list[RecordedOperation] = []
    for together in list(members.values())[:_MOST_PENDING]:
        first = together[0]
        details = [_Details.model_validate(entry, from_attributes=True) for entry in together]
        inputs = tuple(size for each in details for size in each.input_sizes)
        operations.append(
            RecordedOperation(
                group=first.process_group[0],
                name=first.profiling_name,
                collective=first.collective_seq_id,
                transfer=first.p2p_seq_id,
                size=inputs[0] if inputs else (),
                since_ns=first.time_created_ns,
                tensors=Tensors(
                    inputs,
                    tuple(size for each in details for size in each.output_sizes),
                    # Only the root of a scatter has inputs.
                    tuple(
                        sorted(
                            {
                                dtype
                                for each in details
                                for dtype in each.input_dtypes or each.output_dtypes
                            }
                        )
                    ),
                ),
                has_started={"started": True, "scheduled": False}.get(first.state),
                is_transfer=first.is_p2p,
                # The rank waits for its first operation, so that only its stack is kept.
                called_at=() if operations else tuple(frame.frame for frame in details[0].frames),
            )
        )
    return tuple(operations)


class FlightRecorder:
    """The dumps of all ranks of a job, joined.

    Recorders other than NCCL's list no groups: a group then has the ranks that used it, and the
    default group has all ranks up to the largest known one.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, tuple[int, ...] | None], int] = {}
        self._described: list[Group] = []
        self._members = 0
        # by index of a group without listed ranks: the ranks that used the group
        self._used_by: dict[int, set[int]] = {}
        # by rank: the rank's dump, and the indices of its groups by name
        self._dumps: dict[int, tuple[RecordedDump, Mapping[str, int]]] = {}

    def add(self, rank: int, dump: RecordedDump) -> None:
        """Add the dump of a rank.

        Raises
        ------
        InvalidTraceError
            The rank has a dump already, or the groups have too many ranks in all.
        """
        if rank in self._dumps:
            raise InvalidTraceError(f"Rank {rank} has two dumps", code="hang.rank_twice")
        indices = {}
        for group in dump.groups:
            index = indices[group.name] = self._group(group)
            if group.ranks is None:
                self._used_by.setdefault(index, set()).add(rank)
        self._dumps[rank] = dump, indices

    def job(self, others: Collection[int] = ()) -> JobState:
        """Return the state of the job that follows from the dumps.

        Parameters
        ----------
        others : collection of int, optional
            Further ranks of the job, without a dump.
        """
        groups = list(self._described)
        listed: dict[str, list[int]] = {}
        for index, group in enumerate(groups):
            if index not in self._used_by:
                listed.setdefault(group.name, []).append(index)
        # Ranks are numbered from 0 without gaps, although some ranks may have left no dump.
        everyone = tuple(range(max((*self._dumps, *others), default=-1) + 1))
        same: dict[int, int] = {}  # by index of a group: that of the same group as others list it
        for index, ranks in self._used_by.items():
            named = listed.get(groups[index].name, [])
            if len(named) == 1 and ranks <= set(groups[named[0]].ranks):
                same[index] = named[0]
            is_default = groups[index].description == DEFAULT_GROUP
            members = everyone if is_default else tuple(sorted(ranks))
            groups[index] = replace(groups[index], ranks=members, is_listed=False)
        states = {}
        for rank, (dump, own) in self._dumps.items():
            indices = {name: same.get(index, index) for name, index in own.items()}
            states[rank] = RankState(
                rank,
                tuple(
                    _pending(rank, operation, groups, indices[operation.group])
                    for operation in dump.pending
                ),
                {indices[name]: reached for name, reached in dump.reached.items()},
                finished=_finished(dump, groups, indices),
            )
        return JobState(tuple(groups), states)

    def _group(self, group: RecordedGroup) -> int:
        """Return the index of a group; equal names with other ranks are other groups."""
        key = group.name, group.ranks
        if key not in self._groups:
            self._members += len(group.ranks or ())
            if self._members > _MOST_MEMBERS:
                raise InvalidTraceError(
                    f"The groups have more than {_MOST_MEMBERS} ranks together",
                    code="hang.too_large",
                )
            self._groups[key] = len(self._described)
            description = "" if group.description == _UNDESCRIBED else group.description
            self._described.append(Group(group.name, description, group.ranks or ()))
        return self._groups[key]


def _ends(name: str, ranks: Sequence[int]) -> tuple[int | None, bool]:
    """Return the global rank at the other end of a transfer, and whether the rank sends."""
    transfer = _TRANSFER.search(name)
    if transfer is None:
        return None, False
    # The length is checked first, because many digits are expensive to convert.
    place = int(transfer[3]) if len(transfer[3]) <= _LONGEST_INTEGER else len(ranks)
    return (ranks[place] if place < len(ranks) else None), transfer[2] == "->"


def _finished(
    dump: RecordedDump, groups: Sequence[Group], indices: Mapping[str, int]
) -> dict[tuple[int, int, bool], tuple[int, ...]]:
    """Return the numbers of a rank's last finished transfers by group, peer and direction."""
    finished = {}
    for transfer in dump.finished:
        group = indices[transfer.group]
        peer, is_send = _ends(transfer.name, groups[group].ranks)
        if peer is not None:
            finished[group, peer, is_send] = transfer.numbers
    return finished


def _pending(
    rank: int, operation: RecordedOperation, groups: Sequence[Group], group: int
) -> Pending:
    peer, is_send = _ends(operation.name, groups[group].ranks)
    if operation.is_transfer and peer is None:
        peer = rank  # a batch whose members are not recorded
    return Pending(
        group=group,
        number=operation.collective if peer is None else operation.transfer,
        name=operation.name if peer is None else operation.name.partition(" ")[0],
        peer=peer,
        is_send=is_send,
        tensors=operation.tensors,
        has_started=operation.has_started,
        called_at=operation.called_at,
        since_ns=operation.since_ns,
    )


def _group_names(dump: _Dump) -> Mapping[int, str]:
    """Return the names of the groups in a dump, by the groups' numbers.

    Entries have both. Groups without entries are numbered in the order of their creation, as names
    that are numbers are, unless an entry contradicts that.
    """
    by_entry = {entry.pg_id: entry.process_group[0] for entry in dump.entries if entry.pg_id >= 0}
    listed = [name for name, group in dump.pg_config.items() if group.ranks]
    if len(listed) != len(dump.pg_status) or not all(name.isdecimal() for name in listed):
        return by_entry
    by_order = dict(zip(sorted(dump.pg_status), sorted(listed, key=int), strict=True))
    agrees = all(by_order.get(number) == name for number, name in by_entry.items())
    return by_order if agrees else by_entry
