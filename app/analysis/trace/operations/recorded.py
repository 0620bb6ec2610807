"""From the recorder's names of operations to ours, for whole columns."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from app.analysis.trace.faults import refuse_body
from app.analysis.trace.limits import MAX_OP_NAMES
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    KNOWN_OP_TYPES,
    WGRAD_COMPUTE,
)
from app.analysis.trace.operations.types import CROSS_MESH_RECV, CROSS_MESH_SEND, FUSED, normalize

_CROSS_MESH = (CROSS_MESH_SEND, CROSS_MESH_RECV)


@dataclass(frozen=True, slots=True)
class Named:
    """Columns with our operation types."""

    columns: dict[str, NDArray[Any]]  # `op` holds indices into `op_names`
    op_names: tuple[str, ...]  # `KNOWN_OP_TYPES`, then the unknown types that rows have
    source: NDArray[np.intp] | None  # row of the body of each row, where operations were split
    # Two recorded names became one type, or operations were split: the recorded order and runs no
    # longer hold.
    changed: bool


def name_operations(
    columns: Mapping[str, NDArray[Any]], heads: NDArray[np.intp], names: Sequence[str]
) -> Named:
    """Give every operation our type.

    Parameters
    ----------
    columns : mapping
        `op` holds indices into `names`.
    heads : int array
        Rows among which every name that is used appears.

    Raises
    ------
    InvalidTraceError
        `trace.too_many_op_names`.
    """
    used = np.flatnonzero(np.bincount(columns["op"][heads])).tolist()
    if len(used) > MAX_OP_NAMES:
        refuse_body("too_many_op_names", f"over {MAX_OP_NAMES} names of operations")
    ours = {code: normalize(names[code]) for code in used}
    types = list(KNOWN_OP_TYPES)
    types += dict.fromkeys(name for name in ours.values() if name not in KNOWN_OP_TYPES)
    code_of = {name: code for code, name in enumerate(types)}

    table = np.zeros(len(names), np.int16)
    for code, name in ours.items():
        table[code] = code_of[name]
    named = dict(columns)
    if any(table[code] != code for code in used):
        named["op"] = table[columns["op"]]

    present = set(ours.values())
    directed = not present.isdisjoint(_CROSS_MESH) and _direct(named, code_of)
    source = None if present.isdisjoint(FUSED) else _split(named, code_of)
    changed = directed or source is not None or len(present) < len(used)
    if changed:
        forget_unused(named, types)
    return Named(named, tuple(types), source, changed)


def forget_unused(columns: dict[str, NDArray[Any]], types: list[str]) -> None:
    """Drop unknown types that no row has any more."""
    known = len(KNOWN_OP_TYPES)
    counts = np.bincount(columns["op"], minlength=len(types))
    keep = [code for code in range(len(types)) if code < known or counts[code]]
    table = np.zeros(len(types), np.int16)
    table[keep] = np.arange(len(keep))
    columns["op"] = table[columns["op"]]
    types[:] = [types[code] for code in keep]


def _split(columns: dict[str, NDArray[Any]], code_of: Mapping[str, int]) -> NDArray[np.intp]:
    """Replace fused operations by their parts; return the row that each row comes from."""
    op = columns["op"]
    fused = {code_of[name]: parts for name, parts in FUSED.items() if name in code_of}
    parts_of_row = np.ones(len(op), np.intp)
    for code, parts in fused.items():
        parts_of_row[op == code] = len(parts)
    source = np.repeat(np.arange(len(op)), parts_of_row)
    first = np.cumsum(parts_of_row) - parts_of_row
    part = np.arange(len(source)) - first[source]
    for name in list(columns):
        columns[name] = columns[name][source]
    split = columns["op"]
    for code, parts in fused.items():
        rows = np.flatnonzero(split == code)
        codes = np.array([code_of[name] for name in parts], np.int16)
        split[rows] = codes[part[rows]]
        columns["mb"][rows] = ABSENT
        columns["mc"][rows] = ABSENT
    return source


def _direct(columns: dict[str, NDArray[Any]], code_of: Mapping[str, int]) -> bool:
    """Make cross-mesh transfers sends and receives of the direction that their place tells.

    A send moves what the rank computed last before it, a receive what the rank computes next.
    Where the rank computes nothing there, the type stays as recorded.
    """
    op = columns["op"]
    forward = code_of[FORWARD_COMPUTE]
    computing = [forward, code_of[BACKWARD_COMPUTE], code_of[WGRAD_COMPUTE]]
    rows = np.flatnonzero(np.isin(op, [*computing, *(code_of.get(n, -1) for n in _CROSS_MESH)]))
    rows = rows[np.lexsort((columns["start"][rows], columns["step"][rows], columns["rank"][rows]))]
    sequence = op[rows]
    rank, step = columns["rank"][rows], columns["step"][rows]
    place = np.arange(len(rows))
    is_compute = np.isin(sequence, computing)
    before = np.maximum.accumulate(np.where(is_compute, place, -1))
    after = np.minimum.accumulate(np.where(is_compute, place, len(rows))[::-1])[::-1]
    changed = False
    for name, neighbor, types in (
        (CROSS_MESH_SEND, before, (FORWARD_SEND, BACKWARD_SEND)),
        (CROSS_MESH_RECV, after, (FORWARD_RECV, BACKWARD_RECV)),
    ):
        mine = np.flatnonzero(sequence == code_of.get(name, -1))
        mine = mine[(neighbor[mine] >= 0) & (neighbor[mine] < len(rows))]
        other = neighbor[mine]
        near = (rank[other] == rank[mine]) & (step[other] == step[mine])
        mine, other = mine[near], other[near]
        is_forward = sequence[other] == forward
        op[rows[mine]] = np.where(is_forward, code_of[types[0]], code_of[types[1]])
        changed = changed or bool(len(mine))
    return changed
