"""What a profiler's file says of itself before its events: whose it is, and its process groups."""

from __future__ import annotations

from typing import Any, Final

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import MAX_WORLD
from app.analysis.trace.recordings.json_items import Field
from app.analysis.trace.recordings.profiler.groups import Group
from app.analysis.trace.recordings.profiler.scan import Scan
from app.analysis.trace.recordings.values import Event

EVENTS: Final = "traceEvents"
DISTRIBUTED: Final = "distributedInfo"
_MAX_GROUPS: Final = 4096
# Ranks of a group that are written as one text.
_MAX_RANKS_TEXT: Final = 1 << 20
_MAX_DIGITS: Final = 12


def take_header(found: Scan, part: Field) -> None:
    """Take a field of the file other than its events.

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
        found.base_ns = part.value
    elif part.name == "host_name" and isinstance(part.value, str):
        found.host = part.value
    elif part.name == "deviceProperties" and isinstance(part.value, list) and part.value:
        first = part.value[0]
        name = first.get("name") if isinstance(first, dict) else None
        found.gpu = name if isinstance(name, str) else None
    elif part.name == DISTRIBUTED and isinstance(part.value, dict):
        info = Event(0, part.value)
        found.rank = info.optional_integer("rank")
        found.world = info.optional_integer("world_size")
        found.groups = _groups(part.value.get("pg_config"))


def _groups(config: Any) -> list[Group]:  # noqa: ANN401 - what a user wrote
    if isinstance(config, dict):
        config = list(config.values())
    if not isinstance(config, list):
        return []
    if len(config) > _MAX_GROUPS:
        refuse_body("bad_event", f"{DISTRIBUTED} lists over {_MAX_GROUPS} process groups")
    groups = []
    for one in config:
        if not isinstance(one, dict):
            continue
        ranks = _ranks(one.get("ranks"))
        name, description = one.get("pg_name", ""), one.get("pg_desc", "")
        if not (isinstance(ranks, list) and isinstance(name, str) and isinstance(description, str)):
            continue
        if all(type(rank) is int and 0 <= rank < MAX_WORLD for rank in ranks):
            groups.append(Group(name, description, tuple(ranks)))
    return groups


def _ranks(said: Any) -> Any:  # noqa: ANN401 - what a user wrote
    """Return the ranks of a group as a list where they are one as text, or numbered by a map."""
    if isinstance(said, str) and len(said) <= _MAX_RANKS_TEXT:
        numbers = said.strip("[]() ").split(",")
        return [int(number) for number in numbers] if all(map(_is_rank, numbers)) else None
    if isinstance(said, dict) and all(map(_is_rank, said)):
        in_order = all(type(place) is int for place in said.values())
        return [int(rank) for rank in (sorted(said, key=said.__getitem__) if in_order else said)]
    return said


def _is_rank(text: str) -> bool:
    return text.strip().isascii() and text.strip().isdecimal() and len(text) <= _MAX_DIGITS
