"""What an instruction of XLA does, by its name or its text.

A TPU's events are named by the text of the instruction, ``%all-reduce.5 = f32[8]{0}
all-reduce(f32[8]{0} %p), replica_groups={{0,1},{2,3}}``, others by its name, ``all-reduce.5``, and
kernels of NCCL by that. An asynchronous collective is two instructions, ``-start`` and ``-done``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum, auto
from typing import Final

from app.analysis.trace.recordings.profiler.scan import collective_of


class Part(Enum):
    """Which part of a collective an instruction is."""

    WHOLE = auto()
    START = auto()
    DONE = auto()


_PARTS: Final = {None: Part.WHOLE, "-start": Part.START, "-done": Part.DONE}


@dataclass(frozen=True, slots=True)
class Groups:
    """Devices that a collective is over, as far as its text says."""

    size: int  # of a group; devices
    devices: int  # of all groups together
    contiguous: bool  # a group has devices with consecutive numbers


@dataclass(frozen=True, slots=True)
class Instruction:
    """A collective."""

    kind: str  # ``all-reduce``
    part: Part = Part.WHOLE
    name: str = ""  # of the instruction: ``all-reduce-start.5``
    started: str | None = None  # of what starts it, where this is the end of it
    groups: Groups | None = None  # None where nothing is said, or all devices are in one


_KINDS: Final = (
    "all-reduce",
    "all-gather",
    "reduce-scatter",
    "collective-permute",
    "ragged-all-to-all",
    "all-to-all",
    "collective-broadcast",
)
# Longest first; XLA calls a fused all-reduce and slice an all-reduce-scatter.
_NAMES: Final = {"all-reduce-scatter": "reduce-scatter", **{kind: kind for kind in _KINDS}}
_ANY: Final = "|".join(_NAMES)
_NAME: Final = re.compile(rf"%?(({_ANY})(-start|-done)?(?:[._][\w.-]{{0,200}})?)(?=$|\s)")
_TEXT: Final = re.compile(r"%?([\w.-]{1,200}) = ")
# After the type, in which parentheses stand behind no name of small letters.
_OPCODE: Final = re.compile(rf" (?:({_ANY})(-start|-done)?|[a-z][a-z0-9-]{{0,60}})\(")
# What may be the whole of a collective under its name.
_WRAPPERS: Final = (" fusion(", " custom-call(", " call(")
_LONGEST_TYPE: Final = 20_000
_STARTED: Final = re.compile(r"-done\(.{0,4000}?%([\w.-]{1,200})")
_NCCL: Final = {
    "allreduce": "all-reduce",
    "allgather": "all-gather",
    "reducescatter": "reduce-scatter",
    "sendrecv": "collective-permute",
    "alltoall": "all-to-all",
    "broadcast": "collective-broadcast",
}
_LISTED: Final = re.compile(
    r"replica_groups=\{\{([0-9, ]{1,4000})\}((?:,\{[0-9, ]{1,4000}\}){0,100000})\}"
)
_IOTA: Final = re.compile(r"replica_groups=\[([0-9]{1,7}),([0-9]{1,7})\]<=\[([0-9, ]{1,60})\](T?)")
# Memory that is moved is no computation.
_COPIES: Final = ("Memcpy", "Memset", "MemcpyD2H", "copy-start", "copy-done")


def collective_in(text: str) -> Instruction | None:
    """Return the collective that an event's name says, None where it says none.

    Examples
    --------
    >>> collective_in("all-reduce.5").kind
    'all-reduce'
    >>> collective_in("%all-gather-done.1 = f32[8] all-gather-done((f32[4]) %start.1)").started
    'start.1'
    >>> collective_in("ncclDevKernel_AllReduce_Sum_f32_RING_LL(ncclDevKernelArgs)").kind
    'all-reduce'
    >>> collective_in("loop_all_fusion.3") is None
    True
    """
    name, kind, part = _named(text)
    if kind is None:
        kernel = collective_of(text)
        found = None if kernel is None else _NCCL.get(kernel)
        return None if found is None else Instruction(found)
    started = _STARTED.search(text) if part is Part.DONE else None
    return Instruction(kind, part, name, None if started is None else started[1], _groups(text))


def _named(text: str) -> tuple[str, str | None, Part]:
    """Return the name of an instruction, and which collective it is, None where it is none."""
    said = _TEXT.match(text)
    opcode = None if said is None else _OPCODE.search(text, said.end() - 1, _LONGEST_TYPE)
    if said is not None and opcode is not None and opcode[1]:
        return said[1], _NAMES[opcode[1]], _PARTS[opcode[2]]
    if opcode is not None and opcode[0] not in _WRAPPERS:
        return "", None, Part.WHOLE
    named = _NAME.match(text)
    if named is None:
        return "", None, Part.WHOLE
    return named[1], _NAMES[named[2]], _PARTS[named[3]]


def is_copy(text: str) -> bool:
    """Return whether an event only moves memory of one device."""
    return text.removeprefix("%").startswith(_COPIES)


def _groups(text: str) -> Groups | None:
    iota = _IOTA.search(text)
    if iota is not None:
        count, size = int(iota[1]), int(iota[2])
        return Groups(size, count * size, not iota[4]) if count > 1 else None
    listed = _LISTED.search(text)
    if listed is None:
        return None
    first = [int(number) for number in listed[1].split(",") if number.strip()]
    others = [number for number in listed[2].replace("{", "").split(",") if number.strip("} ")]
    if not others or not first:
        return None
    contiguous = first == list(range(first[0], first[0] + len(first)))
    return Groups(len(first), len(first) + len(others), contiguous)
