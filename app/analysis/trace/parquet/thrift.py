"""As much of Thrift's compact protocol as Parquet's footers and page headers need."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

_TRUE: Final = 1
_FALSE: Final = 2
_BYTE: Final = 3
_INTEGERS: Final = (5, 6, 4)
_DOUBLE: Final = 7
_BINARY: Final = 8
_LISTS: Final = (9, 10)
_STRUCT: Final = 12

_LONG_LIST: Final = 15
_CONTINUES: Final = 0x80
_VARINT_BYTES: Final = 10
# Parquet's footers need nine.
_MAX_DEPTH: Final = 16


class ThriftError(Exception):
    """The bytes are not a struct of the compact protocol."""


@dataclass(slots=True)
class ReadBudget:
    """Items of lists that may still be read: an item takes a byte there, and far more here."""

    items: int = 1 << 19


def read_struct(
    data: bytes, position: int, budget: ReadBudget, depth: int = 0
) -> tuple[dict[int, Any], int]:
    """Return a struct's values by field id, and where it ends.

    Strings are bytes; floating-point numbers and single bytes are passed over. A body has
    thousands of page headers, so this is one loop with the short cases in line.

    Raises
    ------
    ThriftError
        The bytes are malformed, or hold more than the budget.
    IndexError
        The bytes end before the struct does.
    """
    if depth > _MAX_DEPTH:
        raise ThriftError("nested too deep")
    fields: dict[int, Any] = {}
    field = 0
    while head := data[position]:
        position += 1
        kind = head & 0x0F
        if head > kind:
            field += head >> 4
        else:
            field, position = _zigzag(data, position)
        if kind in _INTEGERS:
            value = data[position]
            if value < _CONTINUES:
                position += 1
                fields[field] = (value >> 1) ^ -(value & 1)
            else:
                fields[field], position = _zigzag(data, position)
        elif kind == _BINARY:
            fields[field], position = _binary(data, position)
        elif kind == _STRUCT:
            fields[field], position = read_struct(data, position, budget, depth + 1)
        elif kind in (_TRUE, _FALSE):
            fields[field] = kind == _TRUE
        else:
            fields[field], position = _other(data, position, kind, budget, depth)
    return fields, position + 1


def _varint(data: bytes, position: int) -> tuple[int, int]:
    value = 0
    for count in range(_VARINT_BYTES):
        byte = data[position + count]
        value |= (byte & 0x7F) << (7 * count)
        if byte < _CONTINUES:
            return value, position + count + 1
    raise ThriftError("an integer is too long")


def _zigzag(data: bytes, position: int) -> tuple[int, int]:
    value, position = _varint(data, position)
    return (value >> 1) ^ -(value & 1), position


def _binary(data: bytes, position: int) -> tuple[bytes, int]:
    length = data[position]
    if length < _CONTINUES:
        position += 1
    else:
        length, position = _varint(data, position)
    end = position + length
    if end > len(data):
        raise IndexError("a string goes on behind the bytes")
    return data[position:end], end


def _other(
    data: bytes, position: int, kind: int, budget: ReadBudget, depth: int
) -> tuple[list[Any] | None, int]:
    """Return a value of a rarer kind, and where it ends."""
    if kind == _BYTE:
        return None, position + 1
    if kind == _DOUBLE:
        return None, position + 8
    if kind not in _LISTS or depth >= _MAX_DEPTH:
        raise ThriftError(f"an unexpected type {kind}")
    head = data[position]
    count, position = head >> 4, position + 1
    if count == _LONG_LIST:
        count, position = _varint(data, position)
    budget.items -= count
    if budget.items < 0:
        raise ThriftError("the lists are too long")
    kind, depth = head & 0x0F, depth + 1
    items: list[Any] = []
    for _ in range(count):
        item: object
        if kind == _STRUCT:
            item, position = read_struct(data, position, budget, depth)
        elif kind in _INTEGERS and data[position] < _CONTINUES:
            value = data[position]
            item, position = (value >> 1) ^ -(value & 1), position + 1
        else:
            item, position = _item(data, position, kind, budget, depth)
        items.append(item)
    return items, position


def _item(
    data: bytes, position: int, kind: int, budget: ReadBudget, depth: int
) -> tuple[object, int]:
    """Return an item of a list that is no struct, and where it ends."""
    if kind in _INTEGERS:
        return _zigzag(data, position)
    if kind == _BINARY:
        return _binary(data, position)
    if kind in (_TRUE, _FALSE):
        return data[position] == _TRUE, position + 1
    return _other(data, position, kind, budget, depth)
