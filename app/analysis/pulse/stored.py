"""A detector as bytes, and back: what a worker keeps between batches."""

from __future__ import annotations

import io
import json
import zlib
from collections import Counter
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from app.analysis.pulse.beats import Beats, Sign
from app.analysis.pulse.detector import Detector
from app.analysis.pulse.evidence.charts import Charts
from app.analysis.pulse.evidence.expected import Expected
from app.analysis.pulse.evidence.history import History
from app.analysis.pulse.evidence.trail import Trail
from app.analysis.pulse.ledger import Ledger
from app.analysis.pulse.notices import Evidence, Notice, NoticeKind, Part
from app.analysis.pulse.stalls import StallCount, Stalls
from app.analysis.pulse.steps import Gathering
from app.analysis.pulse.suspicion.cases import Case
from app.analysis.pulse.suspicion.suspects import Suspects
from app.analysis.pulse.watch import Watch
from app.errors import UnknownDocumentError

VERSION: Final = 1
_CLASSES: Final = {
    cls.__name__: cls
    for cls in (
        *(Detector, Gathering, Watch, Expected, Charts, History, Trail, Suspects, Case),
        *(Stalls, StallCount, Ledger, Notice, Evidence, Beats, Sign),
    )
}
_ENUMS: Final = {cls.__name__: cls for cls in (NoticeKind, Part)}


def to_bytes(detector: Detector) -> bytes:
    """Return a detector's state; compressed, and only arrays and plain values."""
    arrays: list[NDArray[Any]] = []
    tree = _plain(detector, arrays)
    text = json.dumps({"version": VERSION, "state": tree})
    body = io.BytesIO()
    np.savez(
        body,
        state=np.frombuffer(text.encode(), np.uint8),
        allow_pickle=False,
        **{f"a{number}": array for number, array in enumerate(arrays)},
    )
    # Most of it is noise, of which no level makes less.
    return zlib.compress(body.getvalue(), level=1)


def from_bytes(body: bytes) -> Detector:
    """Return the detector whose state this is.

    Raises
    ------
    UnknownDocumentError
        The state is of another version.
    """
    with np.load(io.BytesIO(zlib.decompress(body)), allow_pickle=False) as stored:
        document = json.loads(stored["state"].tobytes())
        if document["version"] != VERSION:
            message = f"the state of a pulse is of version {document['version']}, not {VERSION}"
            raise UnknownDocumentError(message)
        detector = _object(document["state"], stored)
    if not isinstance(detector, Detector):
        raise UnknownDocumentError("the state is not that of a pulse")
    return detector


def _plain(value: object, arrays: list[NDArray[Any]]) -> Any:  # noqa: ANN401, PLR0911 - a tree of JSON
    if isinstance(value, np.ndarray):
        narrow = value.astype(np.float32) if value.dtype == np.float64 else value
        # What was rounded is kept so; all else is exact.
        same = narrow is not value and np.array_equal(narrow, value, equal_nan=True)
        arrays.append(narrow if same else value)
        return {"wide" if same else "array": len(arrays) - 1}
    if isinstance(value, StrEnum):
        return {"enum": type(value).__name__, "value": value.value}
    if is_dataclass(value):
        kept = {field.name: _plain(getattr(value, field.name), arrays) for field in fields(value)}
        return {"class": type(value).__name__, "fields": kept}
    if isinstance(value, dict):
        pairs = [[_plain(key, arrays), _plain(item, arrays)] for key, item in value.items()]
        return {"counter" if isinstance(value, Counter) else "dict": pairs}
    if isinstance(value, (list, tuple)):
        kind = "tuple" if isinstance(value, tuple) else "list"
        return {kind: [_plain(item, arrays) for item in value]}
    if isinstance(value, np.generic):
        return value.item()
    return value


def _object(tree: Any, arrays: Any) -> Any:  # noqa: ANN401, PLR0911 - a tree of JSON
    if not isinstance(tree, dict):
        return tree
    match tree:
        case {"array": number}:
            return arrays[f"a{number}"]
        case {"wide": number}:
            return arrays[f"a{number}"].astype(np.float64)
        case {"enum": name, "value": value}:
            return _ENUMS[name](value)
        case {"class": name, "fields": kept}:
            return _CLASSES[name](**{key: _object(item, arrays) for key, item in kept.items()})
        case {"counter": pairs}:
            return Counter({_object(k, arrays): _object(v, arrays) for k, v in pairs})
        case {"dict": pairs}:
            return {_object(k, arrays): _object(v, arrays) for k, v in pairs}
        case {"tuple": items}:
            return tuple(_object(item, arrays) for item in items)
        case {"list": items}:
            return [_object(item, arrays) for item in items]
        case _:
            raise UnknownDocumentError("the state of a pulse holds something else than values")
