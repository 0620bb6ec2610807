"""Names of operation types: aliases, fused operations, and the codes of one body.

An alias is replaced by the published name, and a `-nonoverlapping` type by the type of its
overlapped twin. A fused send and receive is one call for two (or four) transfers: it is split into
operations over the same interval, without microbatch and model chunk, since it is not recorded
which microbatch each transfer moves. Unknown names are kept, with codes after those of the known
types.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from app.analysis.trace.columns import as_numpy
from app.analysis.trace.limits import (
    MAX_DICTIONARY,
    MAX_FAULTS,
    MAX_OP_NAME_CHARS,
    MAX_OP_NAMES,
    Places,
    refuse,
    refuse_body,
)
from app.analysis.trace.model import (
    ABSENT,
    BACKWARD_COMPUTE,
    BACKWARD_RECV,
    BACKWARD_SEND,
    FORWARD_COMPUTE,
    FORWARD_RECV,
    FORWARD_SEND,
    KNOWN_OP_TYPES,
    OP_TYPE_ALIASES,
    WGRAD_COMPUTE,
)

_INVALID: Final = -1
BAD_NAME: Final = f"an operation's name must be 1 to {MAX_OP_NAME_CHARS} printable characters"


def is_op_name(text: str) -> bool:
    """Return whether a text is a valid operation name."""
    return 0 < len(text) <= MAX_OP_NAME_CHARS and text.isprintable() and text == text.strip()


class OpNames:
    """Distinct operation names of one body; the index of a name is its code.

    Parameters
    ----------
    places : Places
        Names the place of a faulty row.
    """

    def __init__(self, places: Places) -> None:
        # The list starts with the known types, so most columns already have the codes of
        # `KNOWN_OP_TYPES`.
        self.names: list[str] = list(KNOWN_OP_TYPES)
        self._places = places
        self._codes: dict[str, int] = {name: code for code, name in enumerate(self.names)}
        self._dictionary: pa.Array[Any] | None = None
        self._of_dictionary: NDArray[np.int16] = np.empty(0, np.int16)

    def codes(self, column: pa.DictionaryArray[Any, Any], first_row: int) -> NDArray[np.int16]:
        """Return the code of every row of `column`, which has no nulls.

        Raises
        ------
        InvalidTraceError
            `trace.bad_op_name`, `trace.too_many_op_names`, `trace.corrupt`.
        """
        dictionary = column.dictionary
        if self._dictionary is None or not dictionary.equals(self._dictionary):
            if len(dictionary) > MAX_DICTIONARY:
                refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
            # Names are read as bytes because Parquet's reader does not check that strings are
            # UTF-8. `view` is used because `cast` loads all of Arrow's functions, which takes
            # longer than a small trace.
            encoded: pa.Array[Any]
            kind = dictionary.type
            if pa.types.is_string(kind):
                encoded = dictionary.view(pa.binary())
            elif pa.types.is_large_string(kind):
                encoded = dictionary.view(pa.large_binary())
            else:
                encoded = dictionary.cast(pa.large_binary())
            raw: list[bytes | None] = encoded.to_pylist()
            codes_of_names = np.array([self._code(name) for name in raw], np.int16)
            if len(self.names) > MAX_DICTIONARY:
                refuse_body("too_many_op_names", f"over {MAX_DICTIONARY} names of operations")
            self._of_dictionary = codes_of_names
            self._dictionary = dictionary
        indices, table = as_numpy(column.indices), self._of_dictionary
        if indices.min() < 0 or indices.max() >= len(table):
            refuse_body("corrupt", "an operation name is outside of its dictionary")
        # The indices are already checked; "clip" saves NumPy's own check.
        codes = table.take(indices, mode="clip")
        if self._of_dictionary.min() == _INVALID and codes.min() == _INVALID:
            rows = np.flatnonzero(codes == _INVALID)[:MAX_FAULTS].tolist()
            refuse(
                self._places.fault("bad_op_name", BAD_NAME, first_row + row, "op") for row in rows
            )
        return codes

    def _code(self, raw: bytes | None) -> int:
        """Return the code of a name; `_INVALID` if the name is not valid."""
        # A character takes at most four bytes in UTF-8.
        if not raw or len(raw) > 4 * MAX_OP_NAME_CHARS:
            return _INVALID
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            return _INVALID
        if not is_op_name(name):
            return _INVALID
        if name not in self._codes:
            self._codes[name] = len(self.names)
            self.names.append(name)
        return self._codes[name]


NONOVERLAPPING: Final = "-nonoverlapping"

FUSED: Final[Mapping[str, tuple[str, ...]]] = {
    "forward-send-backward-recv": (FORWARD_SEND, BACKWARD_RECV),
    "backward-send-forward-recv": (BACKWARD_SEND, FORWARD_RECV),
    "forward-send-forward-recv": (FORWARD_SEND, FORWARD_RECV),
    "backward-send-backward-recv": (BACKWARD_SEND, BACKWARD_RECV),
    "forward-backward-send-forward-backward-recv": (
        FORWARD_SEND,
        BACKWARD_SEND,
        FORWARD_RECV,
        BACKWARD_RECV,
    ),
}

CROSS_MESH_SEND: Final = "cross-mesh-send"
CROSS_MESH_RECV: Final = "cross-mesh-recv"


def normalize(name: str) -> str:
    """Return our operation type for the name that a recorder uses."""
    base = name.removesuffix(NONOVERLAPPING)
    return OP_TYPE_ALIASES.get(base, base)


_CROSS_MESH = (CROSS_MESH_SEND, CROSS_MESH_RECV)


@dataclass(frozen=True, slots=True)
class Named:
    """Columns whose operations have our types."""

    columns: dict[str, NDArray[Any]]  # `op` holds indices into `op_names`
    op_names: tuple[str, ...]  # `KNOWN_OP_TYPES`, then the unknown types that rows have
    source: NDArray[np.intp] | None  # body row of each row if operations were split
    # The recorded order and the runs are no longer valid, because two recorded names became one
    # type or operations were split.
    changed: bool


def name_operations(
    columns: Mapping[str, NDArray[Any]], heads: NDArray[np.intp], names: Sequence[str]
) -> Named:
    """Replace recorded operation names by our types.

    Parameters
    ----------
    columns : mapping
        `op` holds indices into `names`.
    heads : int array
        Rows in which every used name occurs.

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
    directed = not present.isdisjoint(_CROSS_MESH) and _resolve_cross_mesh(named, code_of)
    source = None if present.isdisjoint(FUSED) else _split_fused(named, code_of)
    changed = directed or source is not None or len(present) < len(used)
    if changed:
        forget_unused(named, types)
    return Named(named, tuple(types), source, changed)


def forget_unused(columns: dict[str, NDArray[Any]], types: list[str]) -> None:
    """Remove unknown types without rows from `types`, and renumber the codes in place."""
    first_unknown = len(KNOWN_OP_TYPES)
    counts = np.bincount(columns["op"], minlength=len(types))
    keep = [code for code in range(len(types)) if code < first_unknown or counts[code]]
    table = np.zeros(len(types), np.int16)
    table[keep] = np.arange(len(keep))
    columns["op"] = table[columns["op"]]
    types[:] = [types[code] for code in keep]


def _split_fused(columns: dict[str, NDArray[Any]], code_of: Mapping[str, int]) -> NDArray[np.intp]:
    """Replace fused operations by their parts in place; return the original row of each row."""
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


def _resolve_cross_mesh(columns: dict[str, NDArray[Any]], code_of: Mapping[str, int]) -> bool:
    """Set the direction of cross-mesh transfers in place; return whether any type changed.

    A send moves the result of the rank's previous computation, a receive the input of its next
    computation; the transfer gets the direction of this computation. If the step has no such
    computation, the type stays as recorded.
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
