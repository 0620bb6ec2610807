"""Reader of pickles with plain values only, which does not unpickle them.

A pickle is a program that may call anything. This reader executes the opcodes that build
dictionaries, lists, tuples, texts, bytes, numbers, booleans and None, and refuses all others by
name and offset: nothing is imported, constructed or called. Values may be shared, and may contain
themselves: the caller must bound its traversal. Opcodes: `pickletools` of the standard library.
"""

from __future__ import annotations

import pickletools
import re
import struct
from collections.abc import Callable
from copy import copy
from typing import Final

from app.errors import Fault, InvalidTraceError

# Limit of memory: an opcode creates a value of a few dozen bytes, or a text no longer than in the
# pickle.
_MOST_OPCODES: Final = 1 << 22
# Largest depth of nested containers.
_DEEPEST: Final = 64
# Bytes of the largest integer. Python hashes an integer modulo 2^61 - 1: larger integers may have
# equal hashes, and a dictionary of n such keys takes n² steps to build.
_LONGEST_INTEGER: Final = 8
_LONGEST_DECIMAL: Final = len(str(-(1 << 63)))
_NAMES: Final = {ord(opcode.code): opcode.name for opcode in pickletools.opcodes}
_STOP, _BINGET, _LONG_BINGET, _BININT1, _BININT2, _LONG1 = b".hjKM\x8a"
_CONSTANTS: Final = {ord(b"N"): None, 0x88: True, 0x89: False}
_INLINE: Final = frozenset((*b".hjKM", *_CONSTANTS))
_CONTAINERS: Final = frozenset((list, tuple, dict))
_BEGINS: Final = frozenset(b"]}")
_ENDS: Final = frozenset(b"eu")
_PUTS: Final = frozenset({b"q", b"r", b"p", b"\x94"})
# Pattern of lists and dictionaries of small numbers and memo references, such as sizes, types and
# stacks. A dump repeats these values thousands of times, so that equal bytes without a memo entry
# are built only once.
_PLAIN: Final = rb"[hK].|M.{2}|[jJ].{4}|[\x88\x89N]"
_FLAT: Final = rb"\}\((?:%b){0,64}+u|\]\((?:%b){0,64}+e" % (_PLAIN, _PLAIN)
_ALIKE: Final = re.compile(rb"%b|\]\((?:%b|%b){0,64}+e" % (_FLAT, _PLAIN, _FLAT), re.DOTALL)
_CODE: Final = "hang.invalid_pickle"


def plain_pickle(body: bytes) -> object:
    """Return the value of a pickle that contains only plain values.

    Raises
    ------
    InvalidTraceError
        An opcode that may do more (with its name and offset), or no whole pickle.

    Examples
    --------
    >>> import pickle
    >>> plain_pickle(pickle.dumps({"entries": [(1, "all_reduce", None)]}, protocol=2))
    {'entries': [(1, 'all_reduce', None)]}
    """
    return _Machine(body).run()


class _Machine:
    """Interpreter of the opcodes that build plain values."""

    def __init__(self, body: bytes) -> None:
        self._body = body
        self._at = 0
        self._stack: list[object] = []
        self._marks: list[int] = []
        self._memo: dict[int, object] = {}
        # Built values by their bytes, the identities of these values, and whether equal bytes still
        # mean equal values.
        self._built: dict[bytes, object] = {}
        self._shared: set[int] = set()
        self._is_alike = True

    def run(self) -> object:  # noqa: C901, PLR0912 - a call an opcode takes twice as long
        body, opcodes, built = self._body, _OPCODES, self._built
        stack, memo = self._stack, self._memo
        # Bytes of the values under construction, by the offset of their end.
        building: dict[int, bytes] = {}
        at = 0
        try:
            for _ in range(_MOST_OPCODES):
                code = body[at]
                # The most frequent opcodes are executed inline, which reads a dump in a third of
                # the time.
                if code == _BINGET:
                    stack.append(memo[body[at + 1]])
                    at += 2
                elif code == _BININT1:
                    stack.append(body[at + 1])
                    at += 2
                elif code in _BEGINS and (match := self._repeatable(at)):
                    value = built.get(match[0])
                    if value is None:
                        building[match.end()] = match[0]
                        self._at = at + 1
                        opcodes[code](self)
                        at += 1
                    else:
                        stack.append(value)
                        at = match.end()
                elif code == _BININT2 and at + 3 <= len(body):
                    stack.append(body[at + 1] | body[at + 2] << 8)
                    at += 3
                elif code == _LONG1 and body[at + 1] <= min(_LONGEST_INTEGER, len(body) - at - 2):
                    end = at + 2 + body[at + 1]
                    stack.append(int.from_bytes(body[at + 2 : end], "little", signed=True))
                    at = end
                elif code in _CONSTANTS:
                    stack.append(_CONSTANTS[code])
                    at += 1
                elif code == _LONG_BINGET and at + 5 <= len(body):
                    stack.append(memo[int.from_bytes(body[at + 1 : at + 5], "little")])
                    at += 5
                elif code == _STOP:
                    if len(stack) != 1 or self._marks:
                        raise _refused("It ends within a value", at)
                    return stack[0]
                else:
                    self._at = at + 1
                    opcodes[code](self)
                    at = self._at
                    if code in _ENDS and at in building:
                        built[building.pop(at)] = stack[-1]
                        self._shared.add(id(stack[-1]))
        except (LookupError, OverflowError, TypeError, ValueError, struct.error) as error:
            raise self._refusal(at, error) from error
        raise _refused(f"It has more than {_MOST_OPCODES} opcodes", at)

    def _repeatable(self, at: int) -> re.Match[bytes] | None:
        """Return the match of the value at an offset, if equal bytes may share one object.

        A value that is not put into the memo is referred to from one place only, and may be
        shared as long as nothing is added to it.
        """
        match = _ALIKE.match(self._body, at) if self._is_alike else None
        if match is None or self._body[match.end() : match.end() + 1] in _PUTS:
            return None
        return match

    def _refusal(self, at: int, error: Exception) -> InvalidTraceError:
        """Return the error for the opcode at an offset."""
        if at >= len(self._body):
            return _refused(f"It is cut off at byte {at}", at)
        code = self._body[at]
        name = _NAMES.get(code)
        if isinstance(error, OverflowError):
            return _refused(f"{name} at byte {at} has an integer beyond 64 bits", at)
        if code in _OPCODES or code in _INLINE:
            return _refused(f"It makes no sense at byte {at}: {name}", at)
        what = f"The opcode {name}" if name else "What is no opcode"
        return _refused(f"{what} at byte {at} is refused: dumps hold plain values only", at)

    def take(self, count: int) -> bytes:
        """Return the next `count` bytes, and move past them."""
        taken = self._body[self._at : self._at + count]
        if count < 0 or len(taken) < count:
            raise ValueError
        self._at += count
        return taken

    def unsigned(self, count: int) -> int:
        """Return the little-endian number in the next `count` bytes."""
        return int.from_bytes(self.take(count), "little")

    def line(self) -> bytes:
        end = self._body.index(b"\n", self._at)
        return self.take(end + 1 - self._at)[:-1]

    def push(self, value: object) -> None:
        self._stack.append(value)

    def pop(self) -> object:
        if self._marks and self._marks[-1] == len(self._stack):
            raise ValueError
        return self._stack.pop()

    def mark(self) -> None:
        if len(self._marks) == _DEEPEST:
            raise ValueError
        self._marks.append(len(self._stack))

    def marked(self) -> list[object]:
        """Remove and return the values since the last mark."""
        start = self._marks.pop()
        values = self._stack[start:]
        del self._stack[start:]
        return values

    def some(self, count: int) -> list[object]:
        return [self.pop() for _ in range(count)][::-1]

    def last(self) -> object:
        """Return the top of the stack, which may be changed; a shared value is copied."""
        last = self._stack[-1]
        if id(last) in self._shared:
            last = self._stack[-1] = copy(last)
        return last

    def append(self, values: list[object]) -> None:
        last = self.last()
        if not isinstance(last, list):
            raise TypeError
        last.extend(values)

    def set_items(self, values: list[object]) -> None:
        last = self.last()
        # Containers are refused as keys, because hashing nested tuples would recurse without a
        # bound.
        if not isinstance(last, dict) or len(values) % 2:
            raise TypeError
        if not _CONTAINERS.isdisjoint(map(type, values[::2])):
            raise TypeError
        last.update(zip(values[::2], values[1::2], strict=True))

    def put(self, number: int) -> None:
        # If a memo entry is overwritten, equal bytes with references may mean different values.
        self._is_alike = self._is_alike and number not in self._memo
        self._memo[number] = self._stack[-1]

    def memoize(self) -> None:
        self.put(len(self._memo))

    def get(self, number: int) -> None:
        self.push(self._memo[number])

    def integer(self, count: int) -> None:
        if count > _LONGEST_INTEGER:
            raise OverflowError
        self.push(int.from_bytes(self.take(count), "little", signed=True))

    def whole(self) -> int:
        """Return the decimal integer in the next line; raise `OverflowError` beyond 64 bits."""
        text = self.line().rstrip(b"L")
        # The length is checked first, because many digits are expensive to convert.
        if len(text) > _LONGEST_DECIMAL or not -(1 << 63) <= (number := int(text)) < 1 << 63:
            raise OverflowError
        return number

    def decimal(self) -> None:
        # protocol 0 writes False as 00 and True as 01
        begin = self._body[self._at : self._at + 3]
        number = self.whole()
        self.push(bool(number) if begin in {b"00\n", b"01\n"} else number)


def _refused(message: str, at: int) -> InvalidTraceError:
    return InvalidTraceError(message, code=_CODE, faults=(Fault(_CODE, message, row=at),))


def _dictionary(machine: _Machine) -> None:
    values = machine.marked()
    machine.push({})
    machine.set_items(values)


_BY_TEXT: Final[dict[bytes, Callable[[_Machine], object]]] = {
    b"\x80": lambda machine: machine.take(1),  # PROTO
    b"\x95": lambda machine: machine.take(8),  # FRAME
    b"(": _Machine.mark,
    b"}": lambda machine: machine.push({}),
    b"]": lambda machine: machine.push([]),
    b")": lambda machine: machine.push(()),
    b"d": _dictionary,
    b"l": lambda machine: machine.push(machine.marked()),
    b"t": lambda machine: machine.push(tuple(machine.marked())),
    b"\x85": lambda machine: machine.push(tuple(machine.some(1))),
    b"\x86": lambda machine: machine.push(tuple(machine.some(2))),
    b"\x87": lambda machine: machine.push(tuple(machine.some(3))),
    b"a": lambda machine: machine.append(machine.some(1)),
    b"e": lambda machine: machine.append(machine.marked()),
    b"s": lambda machine: machine.set_items(machine.some(2)),
    b"u": lambda machine: machine.set_items(machine.marked()),
    b"X": lambda machine: machine.push(machine.take(machine.unsigned(4)).decode()),
    b"\x8c": lambda machine: machine.push(machine.take(machine.unsigned(1)).decode()),
    b"\x8d": lambda machine: machine.push(machine.take(machine.unsigned(8)).decode()),
    b"V": lambda machine: machine.push(machine.line().decode("raw-unicode-escape")),
    b"B": lambda machine: machine.push(machine.take(machine.unsigned(4))),
    b"C": lambda machine: machine.push(machine.take(machine.unsigned(1))),
    b"\x8e": lambda machine: machine.push(machine.take(machine.unsigned(8))),
    b"T": lambda machine: machine.push(machine.take(machine.unsigned(4)).decode()),
    b"U": lambda machine: machine.push(machine.take(machine.unsigned(1)).decode()),
    b"I": _Machine.decimal,
    b"L": _Machine.decimal,
    b"J": lambda machine: machine.integer(4),
    b"M": lambda machine: machine.push(machine.unsigned(2)),
    b"\x8a": lambda machine: machine.integer(machine.unsigned(1)),
    b"\x8b": lambda machine: machine.integer(machine.unsigned(4)),
    b"F": lambda machine: machine.push(float(machine.line())),
    b"G": lambda machine: machine.push(struct.unpack(">d", machine.take(8))[0]),
    b"q": lambda machine: machine.put(machine.unsigned(1)),
    b"r": lambda machine: machine.put(machine.unsigned(4)),
    b"p": lambda machine: machine.put(machine.whole()),
    b"\x94": _Machine.memoize,
    b"g": lambda machine: machine.get(machine.whole()),
}
_OPCODES: Final = {code[0]: run for code, run in _BY_TEXT.items()}
