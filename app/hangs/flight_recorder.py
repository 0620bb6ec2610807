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

from app.analysis.hangs.state import Group, JobState, Pending, RankState, Reached
from app.errors import Fault, InvalidTraceError
from app.hangs.plain_pickle import plain_pickle

_PICKLE: Final = b"\x80"
_COMPLETED: Final = "completed"
_DEFAULT_GROUP: Final = "default_pg"
# Description that PyTorch writes for a process group without a description.
_UNDESCRIBED: Final = "undefined"
# Names of transfers, such as "nccl:send 0->3" or "gloo:recv 0<-3"; the numbers are ranks within the
# group.
_TRANSFER: Final = re.compile(r"(?:send|recv|isend|irecv)\s*(\d+)\s*(->|<-)\s*(\d+)$")
_MOST_RANKS: Final = 1 << 20
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
    return [int(number) for number in re.findall(r"\d{1,9}", value)[:_MOST_RANKS]]


def _first(value: object) -> object:
    """Return a list with only the first of several input sizes."""
    return value[:1] if isinstance(value, list | tuple) else value


Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
# An integer within 64 bits. Python hashes integers modulo 2^61 - 1: larger integers may have equal
# hashes, and a dictionary of n such keys takes n² steps to build.
Int64 = Annotated[int, Field(ge=-(1 << 63), lt=1 << 63)]
_Size = Annotated[tuple[Int64, ...], Field(max_length=_MOST_DIMENSIONS)]


class Written(BaseModel):
    """Base of models for documents that other programs write; unknown fields are ignored."""

    model_config = ConfigDict(extra="ignore", frozen=True)


def invalid(error: ValidationError, code: str, what: str, whole: str) -> InvalidTraceError:
    """Return the error for a document that does not match its model.

    Parameters
    ----------
    what, whole : str
        Start of the sentence, such as "It is no dump", and name of the whole document.
    """
    first = error.errors(include_url=False, include_input=False)[0]
    place = ".".join(map(str, first["loc"])) or whole
    message = f"{what}: {place}: {first['msg']}"
    return InvalidTraceError(message, code=code, faults=(Fault(code, message),))


class _Group(Written):
    desc: Name = ""
    ranks: Annotated[tuple[Int64, ...], BeforeValidator(_ranks_of)] = Field(max_length=_MOST_RANKS)


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
    input_sizes: Annotated[tuple[_Size, ...], BeforeValidator(_first)] = ()


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


def _without_completed(value: object) -> object:
    """Return the entries that are not completed, and one completed entry of each group."""
    if not isinstance(value, list | tuple):
        return value
    kept, seen = [], set()
    for entry in value:
        if isinstance(entry, dict) and (entry.get("state") == _COMPLETED or entry.get("retired")):
            group = entry.get("process_group")
            names = tuple(group) if isinstance(group, list | tuple) and len(group) == _PAIR else ()
            key = entry.get("pg_id"), names
            if all(isinstance(part, str | int | None) for part in (key[0], *names)):
                if key in seen:
                    continue
                seen.add(key)
        kept.append(entry)
    return kept


class _Dump(Written):
    pg_config: Annotated[dict[str, _Group], BeforeValidator(_bounded)] = Field(
        max_length=_MOST_GROUPS
    )
    pg_status: dict[Int64, _Status] = Field(default_factory=dict, max_length=_MOST_GROUPS)
    entries: Annotated[tuple[_Entry, ...], BeforeValidator(_without_completed)] = Field(
        default=(), max_length=_MOST_ENTRIES
    )


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
    """

    group: str
    name: str
    collective: int
    transfer: int
    size: tuple[int, ...]
    since_ns: int | None


@dataclass(frozen=True, slots=True)
class RecordedDump:
    """The content of a dump that is used: groups, pending operations, and progress by group."""

    groups: tuple[RecordedGroup, ...]
    pending: tuple[RecordedOperation, ...]
    reached: Mapping[str, Reached]  # by the name of a group


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
    try:
        dump = _Dump.model_validate(value)
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
    pending = sorted(
        (entry for entry in dump.entries if entry.state != _COMPLETED and not entry.retired),
        key=lambda entry: entry.record_id,
    )
    return RecordedDump(
        groups=tuple(groups.values()),
        pending=tuple(
            RecordedOperation(
                group=entry.process_group[0],
                name=entry.profiling_name,
                collective=entry.collective_seq_id,
                transfer=entry.p2p_seq_id,
                size=entry.input_sizes[0] if entry.input_sizes else (),
                since_ns=entry.time_created_ns,
            )
            for entry in pending[:_MOST_PENDING]
        ),
        reached={
            names[number]: Reached(
                status.last_enqueued_collective, status.last_completed_collective
            )
            for number, status in dump.pg_status.items()
            if names.get(number) in groups
        },
    )


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
        # Ranks are numbered from 0 without gaps, although some ranks may have left no dump.
        everyone = tuple(range(max((*self._dumps, *others), default=-1) + 1))
        for index, ranks in self._used_by.items():
            is_default = groups[index].description == _DEFAULT_GROUP
            members = everyone if is_default else tuple(sorted(ranks))
            groups[index] = replace(groups[index], ranks=members)
        states = {
            rank: RankState(
                rank,
                tuple(
                    _pending(operation, groups, indices[operation.group])
                    for operation in dump.pending
                ),
                {indices[name]: reached for name, reached in dump.reached.items()},
            )
            for rank, (dump, indices) in self._dumps.items()
        }
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


def _pending(operation: RecordedOperation, groups: Sequence[Group], group: int) -> Pending:
    transfer = _TRANSFER.search(operation.name)
    ranks = groups[group].ranks
    peer = ranks[int(transfer[3])] if transfer and int(transfer[3]) < len(ranks) else None
    return Pending(
        group=group,
        number=operation.collective if peer is None else operation.transfer,
        name=operation.name if peer is None else operation.name.partition(" ")[0],
        peer=peer,
        is_send=transfer is not None and transfer[2] == "->",
        size=operation.size,
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
