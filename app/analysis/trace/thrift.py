"""As much of Thrift's compact protocol as Parquet's page headers need."""

from __future__ import annotations

from typing import Any, Final

_STOP: Final = 0
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
# Parquet's page headers need three.
_MAX_DEPTH: Final = 8


class ThriftError(Exception):
    """The bytes are not a struct of the compact protocol."""


def read_struct(data: bytes, position: int = 0, depth: int = 0) -> tuple[dict[int, Any], int]:
    """Return the integers, booleans and structs of a struct by field id, and where it ends.

    Strings, lists and floating-point numbers are passed over. A body has thousands of page
    headers, so this is one loop with the short cases in line.

    Raises
    ------
    ThriftError
        The bytes are malformed.
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
            length, position = _varint(data, position)
            position += length
        elif kind == _STRUCT:
            fields[field], position = read_struct(data, position, depth + 1)
        elif kind in (_TRUE, _FALSE):
            fields[field] = int(kind == _TRUE)
        else:
            position = _skip(data, position, kind, depth)
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


def _skip(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return where a value ends that is of no use here."""
    if kind == _BYTE:
        return position + 1
    if kind == _DOUBLE:
        return position + 8
    if kind not in _LISTS or depth >= _MAX_DEPTH:
        raise ThriftError(f"an unexpected type {kind}")
    head = data[position]
    count, position = head >> 4, position + 1
    if count == _LONG_LIST:
        count, position = _varint(data, position)
    if count > len(data):
        raise ThriftError("a list is longer than its bytes")
    for _ in range(count):
        position = _skip_item(data, position, head & 0x0F, depth + 1)
    return position


def _skip_item(data: bytes, position: int, kind: int, depth: int) -> int:
    """Return where an item of a list ends."""
    if kind in _INTEGERS:
        return _varint(data, position)[1]
    if kind == _BINARY:
        length, position = _varint(data, position)
        return position + length
    if kind == _STRUCT:
        return read_struct(data, position, depth)[1]
    if kind in (_TRUE, _FALSE):
        return position + 1
    return _skip(data, position, kind, depth)
