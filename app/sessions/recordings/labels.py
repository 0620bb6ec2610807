r"""Read labels: patterns of a job's profiler ranges, and the operation type of each pattern.

::

    'step (?P<step>\d+)': step
    '(attn|mlp)\(F\) mb=(?P<mb>\d+)': forward-compute
    '(attn|mlp)\(B\) mb=(?P<mb>\d+)': backward-compute
    '(dispatch|combine)\([FB]\).*': ep-all-to-all
"""

from __future__ import annotations

from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Final, NoReturn

from pydantic import Field, StringConstraints, TypeAdapter, ValidationError

from app.analysis.documents import (
    UnreadableDocumentError,
    document_text,
    lines_of_keys,
    load_document,
)
from app.analysis.trace.model import KNOWN_OP_TYPES
from app.analysis.trace.operation_names import normalize
from app.analysis.trace.recordings.labels import (
    MAX_PATTERN_CHARS,
    SHORT_NAMES,
    STEP,
    BadPatternError,
    OwnRanges,
    RangeRule,
    compile_pattern,
)
from app.errors import Fault, InvalidLabelsError
from app.platform.validation import predicate

MAX_RULES: Final = 100
MAX_CHARS: Final = 64 * 1024
_Text = Annotated[str, StringConstraints(strict=True, min_length=1, max_length=MAX_PATTERN_CHARS)]
_DOCUMENT: Final = TypeAdapter(
    Annotated[dict[_Text, _Text], Field(min_length=1, max_length=MAX_RULES)]
)


def read_labels(text: str) -> OwnRanges:
    """Return the rules of a YAML or JSON text: patterns with their operation types.

    Raises
    ------
    InvalidLabelsError
        ``labels.malformed``, ``labels.too_large``; ``labels.bad_pattern``, ``labels.bad_value``,
        with the line and the pattern.
    """
    if len(text) > MAX_CHARS:
        _refuse([Fault("too_large", f"the labels are over {MAX_CHARS} characters")])
    try:
        document = load_document(text)
    except UnreadableDocumentError as error:
        _refuse([Fault(error.code, f"the labels cannot be read: {error.message}", line=error.line)])
    lines = lines_of_keys(text)
    try:
        written = _DOCUMENT.validate_python(document)
    except ValidationError as error:
        faults = []
        for item in error.errors():
            bad = str(item["loc"][0]) if item["loc"] else None
            where = "the labels" if bad is None else f"the label {bad!r}"
            message = (
                f"{where} {predicate(item)}; they are a mapping of patterns to operation types"
            )
            faults.append(Fault("bad_value", message, line=lines.get(bad or ""), column=bad))
        _refuse(faults)
    rules = [
        RangeRule(pattern, normalize(SHORT_NAMES.get(op, op)), lines.get(pattern))
        for pattern, op in written.items()
    ]
    faults = [fault for rule in rules for fault in _faults_of(rule)]
    if faults:
        _refuse(faults)
    return OwnRanges(rules)


def labels_at(path: Path) -> OwnRanges:
    """Return the rules that a labels file contains.

    Raises
    ------
    InvalidLabelsError
        As `read_labels`, with the name of the file.
    OSError
        The file cannot be read.
    """
    try:
        return read_labels(document_text(path))
    except UnreadableDocumentError as error:
        _refuse([Fault(error.code, f"{path} cannot be read: {error.message}", line=error.line)])
    except InvalidLabelsError as error:
        message = f"{path}: {error.message}"
        raise InvalidLabelsError(message, code=error.stable_code, faults=error.faults) from error


def _faults_of(rule: RangeRule) -> list[Fault]:
    faults = []
    if rule.op not in (STEP, *KNOWN_OP_TYPES):
        near = get_close_matches(rule.op, (STEP, *KNOWN_OP_TYPES), 1)
        meant = f"; {near[0]} is meant?" if near else f"; there are {', '.join(KNOWN_OP_TYPES)}"
        message = f"the pattern {rule} is given {rule.op[:80]!r}, which is no operation type{meant}"
        faults.append(Fault("bad_value", message, line=rule.line, column=rule.pattern))
    try:
        compile_pattern(rule.pattern)
    except BadPatternError as error:
        message = f"the pattern {rule} is not usable: {error}"
        faults.append(Fault("bad_pattern", message, line=rule.line, column=rule.pattern))
    return faults


def _refuse(faults: list[Fault]) -> NoReturn:
    first = faults[0]
    raise InvalidLabelsError(first.message, code=f"labels.{first.code}", faults=tuple(faults[:10]))
