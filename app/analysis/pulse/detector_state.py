"""Serialization of a detector between batches: a JSON tree and arrays, as a compressed npz."""

from __future__ import annotations

import contextlib
import io
import json
import zipfile
import zlib
from collections import Counter
from collections.abc import Collection
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
import zstandard
from numpy.typing import NDArray

from app.analysis.generation import WRITES, require_readable
from app.analysis.pulse.cases import Case, CaseTracker
from app.analysis.pulse.control_charts import Charts
from app.analysis.pulse.detector import Detector, Watch
from app.analysis.pulse.expected_times import Expected, History, Trend
from app.analysis.pulse.heartbeats import HeartbeatMonitor, LastSeen
from app.analysis.pulse.moving_pauses import MovingPauses
from app.analysis.pulse.notices import Evidence, Ledger, Notice, NoticeKind, Part
from app.analysis.pulse.stalls import StallCount, Stalls
from app.analysis.pulse.step_assembly import StepAssembler
from app.analysis.pulse.token_model import TokenImbalance, TokenModel
from app.errors import UnknownDocumentError

_CLASSES: Final = {
    cls.__name__: cls
    for cls in (
        *(Detector, StepAssembler, Watch, Expected, TokenModel, Charts, History, Trend),
        *(CaseTracker, Case, MovingPauses, TokenImbalance),
        *(Stalls, StallCount, Ledger, Notice, Evidence, HeartbeatMonitor, LastSeen),
    )
}
_FIELDS: Final = {
    name: tuple(field.name for field in fields(cls)) for name, cls in _CLASSES.items()
}
_ENUMS: Final = {cls.__name__: cls for cls in (NoticeKind, Part)}
# Types that JSON represents without loss.
_SCALARS: Final = frozenset({int, float, str, bool, type(None)})
# Level of compression. Most of the state is noise, which higher levels do not make smaller.
_LEVEL: Final = 1
_ZSTD: Final = b"\x28\xb5\x2f\xfd"
# Exceptions that damaged bytes may cause while they are read.
_DAMAGED: Final = (
    *(zstandard.ZstdError, zlib.error, zipfile.BadZipFile, EOFError),
    *(ValueError, KeyError, TypeError),
)


def to_bytes(detector: Detector) -> bytes:
    """Return the compressed state of a detector."""
    arrays: list[NDArray[Any]] = []
    tree = _plain(detector, arrays)
    text = json.dumps({"version": WRITES, "state": tree}, separators=(",", ":"))
    body = io.BytesIO()
    np.savez(
        body,
        state=np.frombuffer(text.encode(), np.uint8),
        allow_pickle=False,
        **{f"a{number}": array for number, array in enumerate(arrays)},
    )
    return zstandard.compress(body.getbuffer(), _LEVEL)


def from_bytes(body: bytes) -> Detector:
    """Return the detector whose state was serialized.

    Raises
    ------
    UnknownDocumentError
        The state is damaged.
    NewerFormatError
        A later version stored the state.
    """
    try:
        whole = zstandard.decompress(body) if body.startswith(_ZSTD) else zlib.decompress(body)
        with np.load(io.BytesIO(whole), allow_pickle=False) as stored:
            document = json.loads(stored["state"].tobytes())
            require_readable(document["version"], "the state of a pulse is")
            detector = _object(document["state"], stored)
    except _DAMAGED as error:
        raise UnknownDocumentError("the state of a pulse is damaged") from error
    if not isinstance(detector, Detector):
        raise UnknownDocumentError("the state is not that of a pulse")
    return detector


def _plain(value: object, arrays: list[NDArray[Any]]) -> Any:  # noqa: ANN401, PLR0911 - a tree of JSON
    if type(value) in _SCALARS:
        return value
    if isinstance(value, np.ndarray):
        narrow = value.astype(np.float32) if value.dtype == np.float64 else value
        # Store values that were rounded to 32 bits as float32: half of the bytes, without loss.
        same = narrow is not value and np.array_equal(narrow, value, equal_nan=True)
        arrays.append(narrow if same else value)
        return {"wide" if same else "array": len(arrays) - 1}
    if isinstance(value, StrEnum):
        return {"enum": type(value).__name__, "value": value.value}
    if is_dataclass(value):
        name = type(value).__name__
        kept = {field: _plain(getattr(value, field), arrays) for field in _FIELDS[name]}
        return {"class": name, "fields": kept}
    if isinstance(value, dict):
        return _plain_dict(value, arrays)
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: _all_plain(value, arrays)}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _plain_dict(value: dict[Any, Any], arrays: list[NDArray[Any]]) -> dict[str, Any]:
    keys = _all_plain(value.keys(), arrays)
    classes = {type(item) for item in value.values()}
    if len(classes) == 1 and (name := next(iter(classes)).__name__) in _FIELDS:
        # Store the fields of the objects of all ranks as arrays: a few arrays instead of thousands
        # of objects.
        columns = {
            field: _column([getattr(item, field) for item in value.values()], arrays)
            for field in _FIELDS[name]
        }
        return {"table": name, "keys": keys, "columns": columns}
    kind = "counter" if isinstance(value, Counter) else "dict"
    return {kind: list(zip(keys, _all_plain(value.values(), arrays), strict=True))}


def _column(values: list[Any], arrays: list[NDArray[Any]]) -> Any:  # noqa: ANN401 - a tree of JSON
    if {type(value) for value in values} == {int}:
        with contextlib.suppress(OverflowError):
            arrays.append(np.array(values, np.int64))
            return {"integers": len(arrays) - 1}
    return _all_plain(values, arrays)


def _all_plain(values: Collection[Any], arrays: list[NDArray[Any]]) -> list[Any]:
    if _SCALARS.issuperset(map(type, values)):
        return list(values)
    return [_plain(value, arrays) for value in values]


def _object(tree: Any, arrays: Any) -> Any:  # noqa: ANN401, PLR0911, C901 - a tree of JSON
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"array": number}:
            return arrays[f"a{number}"]
        case {"wide": number}:
            return arrays[f"a{number}"].astype(np.float64)
        case {"integers": number}:
            return arrays[f"a{number}"].tolist()
        case {"enum": name, "value": value}:
            return _ENUMS[name](value)
        case {"class": name, "fields": kept}:
            return _CLASSES[name](**{key: _object(item, arrays) for key, item in kept.items()})
        case {"table": name, "keys": keys, "columns": columns}:
            given = [_items(columns[field], arrays) for field in columns]
            make = _CLASSES[name]
            rows = zip(*given, strict=True)
            items = [make(**dict(zip(columns, row, strict=True))) for row in rows]
            return dict(zip(_items(keys, arrays), items, strict=True))
        case {"counter": pairs}:
            return Counter({_object(k, arrays): _object(v, arrays) for k, v in pairs})
        case {"dict": pairs}:
            return {_object(k, arrays): _object(v, arrays) for k, v in pairs}
        case {"tuple": items}:
            return tuple(_items(items, arrays))
        case {"list": items}:
            return _items(items, arrays)
        case _:
            raise UnknownDocumentError("the state of a pulse holds something else than values")


def _items(trees: Any, arrays: Any) -> list[Any]:  # noqa: ANN401 - trees of JSON
    if isinstance(trees, dict):
        return list(_object(trees, arrays))
    return [_object(tree, arrays) if isinstance(tree, dict) else tree for tree in trees]
