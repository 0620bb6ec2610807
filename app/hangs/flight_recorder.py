"""Dumps of PyTorch's flight recorder: what each rank has enqueued and not completed.

`_dump_nccl_trace` writes a pickle, `_dump_nccl_trace_json` JSON, of the same fields
(torch/csrc/distributed/c10d/FlightRecorder.hpp). Groups are known by names, which all ranks share,
and on each rank by numbers of its own.
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
# What PyTorch calls a group that was given no description.
_UNDESCRIBED: Final = "undefined"
# "nccl:send 0->3", "gloo:recv 0<-3": ranks are those of the group.
_TRANSFER: Final = re.compile(r"(?:send|recv|isend|irecv)\s*(\d+)\s*(->|<-)\s*(\d+)$")
_MOST_RANKS: Final = 1 << 20
# A recorder has a few thousand; those that are over are left out.
_MOST_ENTRIES: Final = 1 << 16
_MOST_GROUPS: Final = 1 << 16
# What a rank waits for is the first of these.
_MOST_PENDING: Final = 256
# Of all groups together: 16,384 ranks in 64 groups each are a quarter.
_MOST_MEMBERS: Final = 1 << 22
_PAIR: Final = 2
_MOST_DIMENSIONS: Final = 64
_LONGEST_NAME: Final = 512
_RANK_IN_NAME: Final = re.compile(r"(\d+)(?:\.(?:json|pkl|pickle|pt))?$")
_INVALID: Final = "hang.invalid_dump"


def _ranks_of(value: object) -> object:
    """Return ranks that a pickle has as text, such as "[0, 1]"."""
    if not isinstance(value, str):
        return value
    return [int(number) for number in re.findall(r"\d{1,9}", value)[:_MOST_RANKS]]


def _first(value: object) -> object:
    """Return sizes up to the first one: the others are not kept."""
    return value[:1] if isinstance(value, list | tuple) else value


Name = Annotated[str, Field(max_length=_LONGEST_NAME)]
_Size = Annotated[tuple[int, ...], Field(max_length=_MOST_DIMENSIONS)]


class _Written(BaseModel):
    model_config = ConfigDict(extra="ignore", frozen=True)


class _Group(_Written):
    desc: Name = ""
    ranks: Annotated[tuple[int, ...], BeforeValidator(_ranks_of)] = Field(max_length=_MOST_RANKS)


class _Status(_Written):
    last_enqueued_collective: int = -1
    last_completed_collective: int = -1


def _pair(value: object) -> object:
    if isinstance(value, list | tuple) and len(value) != _PAIR:
        raise ValueError("it has a name and a description")
    return value


class _Entry(_Written):
    pg_id: int = -1
    process_group: Annotated[tuple[Name, Name], BeforeValidator(_pair)] = ("", "")
    record_id: int = 0
    # "seq_id" in dumps of before PyTorch 2.4
    collective_seq_id: int = Field(0, validation_alias=AliasChoices("collective_seq_id", "seq_id"))
    p2p_seq_id: int = 0
    profiling_name: Name = ""
    state: str = ""
    retired: bool = False
    is_p2p: bool = False
    time_created_ns: int | None = None
    input_sizes: Annotated[tuple[_Size, ...], BeforeValidator(_first)] = ()


def _bounded(value: object) -> object:
    """Refuse groups with too many ranks together; values of a pickle may be shared."""
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


def _without_those_over(value: object) -> object:
    """Leave out entries that are over, but for one of each group: it has the group's name."""
    if not isinstance(value, list | tuple):
        return value
    kept, seen = [], set()
    for entry in value:
        if isinstance(entry, dict) and (entry.get("state") == _COMPLETED or entry.get("retired")):
            group = entry.get("process_group")
            names = tuple(group) if isinstance(group, list | tuple) and len(group) == _PAIR else ()
            key = entry.get("pg_id"), names
            if all(isinstance(one, str | int | None) for one in (key[0], *names)):
                if key in seen:
                    continue
                seen.add(key)
        kept.append(entry)
    return kept


class _Dump(_Written):
    pg_config: Annotated[dict[str, _Group], BeforeValidator(_bounded)] = Field(
        max_length=_MOST_GROUPS
    )
    pg_status: dict[int, _Status] = Field(default_factory=dict, max_length=_MOST_GROUPS)
    entries: Annotated[tuple[_Entry, ...], BeforeValidator(_without_those_over)] = Field(
        default=(), max_length=_MOST_ENTRIES
    )


def rank_in_name(name: str) -> int | None:
    """Return the rank that the name of a dump ends with: `_dump_3`, `nccl_trace_rank_3.json`."""
    found = _RANK_IN_NAME.search(name)
    return int(found[1]) if found else None


@dataclass(frozen=True, slots=True)
class RecordedGroup:
    """A process group as a rank knows it; ranks are None where its recorder lists none."""

    name: str
    description: str
    ranks: tuple[int, ...] | None


@dataclass(frozen=True, slots=True)
class RecordedOperation:
    """An operation that a rank has enqueued and that is not over.

    Parameters
    ----------
    collective, transfer : int
        Its number among the collectives, and among the sends and receives, of its group.
    """

    group: str
    name: str
    collective: int
    transfer: int
    size: tuple[int, ...]
    since_ns: int | None


@dataclass(frozen=True, slots=True)
class RecordedDump:
    """What is kept of a dump: groups, what is pending, and how far each group has come."""

    groups: tuple[RecordedGroup, ...]
    pending: tuple[RecordedOperation, ...]
    reached: Mapping[str, Reached]  # by the name of a group


def read_dump(body: bytes) -> RecordedDump:
    """Return what is kept of a rank's dump, a pickle or JSON.

    Raises
    ------
    InvalidTraceError
        It is no dump.
    """
    dump = _read(body)
    groups = {
        name: RecordedGroup(name, group.desc, group.ranks)
        for name, group in dump.pg_config.items()
        if group.ranks
    }
    for name, description in dict.fromkeys(one.process_group for one in dump.entries):
        groups.setdefault(name, RecordedGroup(name, description, None))
    names = _names_of_ids(dump)
    pending = sorted(
        (one for one in dump.entries if one.state != _COMPLETED and not one.retired),
        key=lambda one: one.record_id,
    )
    return RecordedDump(
        groups=tuple(groups.values()),
        pending=tuple(
            RecordedOperation(
                group=one.process_group[0],
                name=one.profiling_name,
                collective=one.collective_seq_id,
                transfer=one.p2p_seq_id,
                size=one.input_sizes[0] if one.input_sizes else (),
                since_ns=one.time_created_ns,
            )
            for one in pending[:_MOST_PENDING]
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
    """Joins the dumps of ranks, one after the other.

    Recorders other than NCCL's list no groups. Then a group has the ranks that used it, and the
    default one has all, up to the largest that is known.
    """

    def __init__(self) -> None:
        self._groups: dict[tuple[str, tuple[int, ...] | None], int] = {}
        self._described: list[Group] = []
        self._members = 0
        # the ranks that used a group which no dump lists, by its index
        self._used_by: dict[int, set[int]] = {}
        # by rank: its dump, and the indices of the groups by the names that it knows them by
        self._dumps: dict[int, tuple[RecordedDump, Mapping[str, int]]] = {}

    def add(self, rank: int, dump: RecordedDump) -> None:
        """Add a rank's dump.

        Raises
        ------
        InvalidTraceError
            The rank has one already, or the groups of all have too many ranks together.
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
        """Return what is known of the job.

        Parameters
        ----------
        others : collection of int, optional
            Ranks that are known to be of the job, and have no dump.
        """
        groups = list(self._described)
        # Numbered without gaps, whether they left a dump or not.
        everyone = tuple(range(max((*self._dumps, *others), default=-1) + 1))
        for index, ranks in self._used_by.items():
            is_default = groups[index].description == _DEFAULT_GROUP
            found = everyone if is_default else tuple(sorted(ranks))
            groups[index] = replace(groups[index], ranks=found)
        ranks_of = {
            rank: RankState(
                rank,
                tuple(_pending(one, groups, indices[one.group]) for one in dump.pending),
                {indices[name]: reached for name, reached in dump.reached.items()},
            )
            for rank, (dump, indices) in self._dumps.items()
        }
        return JobState(tuple(groups), ranks_of)

    def _group(self, group: RecordedGroup) -> int:
        """Return the index of a group; names of unlike ranks are unlike groups."""
        key = group.name, group.ranks
        if key not in self._groups:
            self._members += len(group.ranks or ())
            if self._members > _MOST_MEMBERS:
                raise InvalidTraceError(
                    f"The groups have more than {_MOST_MEMBERS} ranks together",
                    code="hang.too_large",
                )
            self._groups[key] = len(self._described)
            said = "" if group.description == _UNDESCRIBED else group.description
            self._described.append(Group(group.name, said, group.ranks or ()))
        return self._groups[key]


def _pending(one: RecordedOperation, groups: Sequence[Group], group: int) -> Pending:
    found = _TRANSFER.search(one.name)
    ranks = groups[group].ranks
    peer = ranks[int(found[3])] if found and int(found[3]) < len(ranks) else None
    return Pending(
        group=group,
        number=one.collective if peer is None else one.transfer,
        name=one.name if peer is None else one.name.partition(" ")[0],
        peer=peer,
        is_send=found is not None and found[2] == "->",
        size=one.size,
        since_ns=one.since_ns,
    )


def _read(body: bytes) -> _Dump:
    value = plain_pickle(body) if body.startswith(_PICKLE) else _json(body)
    try:
        return _Dump.model_validate(value)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        place = ".".join(map(str, first["loc"])) or "the dump"
        message = f"It is no dump of a flight recorder: {place}: {first['msg']}"
        raise InvalidTraceError(
            message, code=_INVALID, faults=(Fault(_INVALID, message),)
        ) from error


def _json(body: bytes) -> object:
    try:
        return json.loads(body)
    except (ValueError, RecursionError) as error:
        raise InvalidTraceError(
            f"It is neither a pickle nor JSON: {error}", code=_INVALID
        ) from error


def _names_of_ids(dump: _Dump) -> Mapping[int, str]:
    """Return the names of the groups that a rank numbers.

    Pending entries say both. Where none does, groups are numbered in the order in which they were
    made, and so are names that are numbers; unless an entry contradicts that.
    """
    said = {one.pg_id: one.process_group[0] for one in dump.entries if one.pg_id >= 0}
    listed = [name for name, group in dump.pg_config.items() if group.ranks]
    if len(listed) != len(dump.pg_status) or not all(name.isdecimal() for name in listed):
        return said
    ordered = _in_order(sorted(dump.pg_status), sorted(listed, key=int))
    agrees = all(ordered.get(number) == name for number, name in said.items())
    return ordered if agrees else said


def _in_order(numbers: Sequence[int], names: Sequence[str]) -> dict[int, str]:
    return dict(zip(numbers, names, strict=True))
