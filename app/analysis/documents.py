"""The only reader of YAML and JSON documents that users wrote.

Time and memory are proportional to the length of a text: JSON may have megabytes, YAML a quarter of
a megabyte (its reader takes a thousand times as long per byte). The reader refuses content that
multiplies or hides other content: aliases, repeated keys, numbers that JSON does not have, nesting
that no document of this project needs, numbers of thousands of digits.
"""

from __future__ import annotations

import json
import math
from collections.abc import Hashable
from pathlib import Path
from typing import Any, Final, NoReturn

import yaml

MOST_CHARS: Final = 16 * 1024 * 1024
# Limit of the length of YAML: the scanner's time is quadratic in some texts, and the worst known
# text of this length takes a second.
MOST_YAML_CHARS: Final = 256 * 1024
# Limit of the nesting. A specification needs 6 levels, metadata with a table for each microbatch 4.
# YAML's scanner takes time in proportion to the square of the depth.
MOST_LEVELS: Final = 64
# Limit of the length of a number: a longer number is no quantity. YAML 1.1 also reads 1:2:3 as a
# number, in quadratic time.
MOST_NUMBER_CHARS: Final = 400

_INTEGER_TAG: Final = "tag:yaml.org,2002:int"
# Wheels of PyYAML contain libyaml's loader; a build without libyaml has only the slow loader.
_Loader: Final[type[yaml.SafeLoader]] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class UnreadableDocumentError(Exception):
    """Error: a text is not a valid document.

    Parameters
    ----------
    message : str
        One sentence for a person.
    code : str
        ``malformed`` or ``too_large``; callers prefix it with the kind of document.
    line : int or None
        1-based line of the fault, if the reader knows it.
    """

    def __init__(self, message: str, code: str = "malformed", line: int | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.code = code
        self.line = line


def document_text(path: Path) -> str:
    """Return the text of a YAML or JSON file; read no more than the length limit.

    Raises
    ------
    UnreadableDocumentError
        The text is too long, or not UTF-8.
    OSError
        The file cannot be read.
    """
    with path.open("rb") as file:
        content = file.read(MOST_CHARS + 1)
    if len(content) > MOST_CHARS:
        raise UnreadableDocumentError(f"over {MOST_CHARS} bytes", "too_large")
    try:
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise UnreadableDocumentError(f"not UTF-8: {error.reason}", line=line) from error


def load_document(text: str) -> object:
    """Return the content of a JSON or YAML text as mappings, lists and scalars.

    Parameters
    ----------
    text : str
        Tried as JSON first, which is a subset of YAML but for tabs and surrogates, and much faster
        to read.

    Raises
    ------
    UnreadableDocumentError
        The text is neither JSON nor YAML, or exceeds a limit of this module.

    Examples
    --------
    >>> load_document("dp: 2")
    {'dp': 2}
    """
    if len(text) > MOST_CHARS:
        raise UnreadableDocumentError(f"over {MOST_CHARS} characters", "too_large")
    try:
        return load_json(text)
    except ValueError:
        return _load_yaml(text)


def load_json(text: str) -> object:
    """Return the content of a JSON text as mappings, lists and scalars.

    Raises
    ------
    UnreadableDocumentError
        A key is repeated in a mapping, a number is not a JSON number, or the nesting is too deep.
    ValueError
        The text is not JSON.
    """
    try:
        return json.loads(
            text,
            parse_constant=_refuse_constant,
            parse_float=_finite,
            object_pairs_hook=_unique,
        )
    except RecursionError:
        raise UnreadableDocumentError("nested too deep") from None


def _refuse_constant(name: str) -> NoReturn:
    raise UnreadableDocumentError(f"{name} is not JSON")


def _finite(text: str) -> float:
    value = float(text)
    if not math.isfinite(value):
        raise UnreadableDocumentError(f"{text[:20]} is too large")
    return value


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    mapping = dict(pairs)
    if len(mapping) != len(pairs):
        raise UnreadableDocumentError("a key stands twice in one mapping")
    return mapping


def lines_of_keys(text: str) -> dict[str, int]:
    r"""Return the 1-based lines of the keys of the outermost mapping of a document.

    Parameters
    ----------
    text : str
        A text that `load_document` has read. A text too long for YAML yields no lines.

    Examples
    --------
    >>> lines_of_keys("dp: 2\npp: 4")
    {'dp': 1, 'pp': 2}
    """
    if len(text) > MOST_YAML_CHARS:
        return {}
    try:
        node = yaml.compose(text, Loader=_Loader)
    except yaml.YAMLError:
        return {}
    if not isinstance(node, yaml.MappingNode):
        return {}
    return {str(key.value): key.start_mark.line + 1 for key, _ in node.value}


class _StrictLoader(_Loader):  # type: ignore[misc, valid-type]
    """Loader of safe YAML that refuses a mapping with a repeated key, or one beyond 64 bits."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:  # noqa: FBT001, FBT002 - PyYAML's signature
        # Python hashes integers modulo 2^61 - 1: larger integers may have equal hashes, and a
        # mapping of n such keys takes n² steps to build.
        for key, _ in node.value:
            number = self.construct_object(key) if key.tag == _INTEGER_TAG else 0
            if not -(1 << 63) <= number < 1 << 63:
                line = key.start_mark.line + 1
                raise UnreadableDocumentError("a key is an integer beyond 64 bits", line=line)
        mapping: dict[Hashable, Any] = super().construct_mapping(node, deep=deep)
        if len(mapping) != len(node.value):
            line = node.start_mark.line + 1
            raise UnreadableDocumentError("a key stands twice in one mapping", line=line)
        return mapping


def _load_yaml(text: str) -> object:
    if len(text) > MOST_YAML_CHARS:
        message = f"YAML of over {MOST_YAML_CHARS} characters; JSON may be longer"
        raise UnreadableDocumentError(message, "too_large")
    try:
        _check_events(text)
        return yaml.load(text, Loader=_StrictLoader)  # noqa: S506 - a SafeLoader
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else None
        message = f"not YAML: {error.problem or error.context}"
        raise UnreadableDocumentError(message, line=line) from error
    except (yaml.YAMLError, ValueError, TypeError, RecursionError) as error:
        raise UnreadableDocumentError(f"not YAML: {error}") from error


def _check_events(text: str) -> None:
    """Refuse YAML that is expensive to compose or to construct, before composing it."""
    level = 0
    for event in yaml.parse(text, Loader=_Loader):
        line = None if event.start_mark is None else event.start_mark.line + 1
        if isinstance(event, yaml.AliasEvent):
            raise UnreadableDocumentError("aliases are not accepted", line=line)
        if isinstance(event, yaml.CollectionStartEvent):
            level += 1
            if level > MOST_LEVELS:
                message = f"nested over {MOST_LEVELS} levels"
                raise UnreadableDocumentError(message, line=line)
        elif isinstance(event, yaml.CollectionEndEvent):
            level -= 1
        elif (
            isinstance(event, yaml.ScalarEvent)
            and event.implicit[0]
            and len(event.value) > MOST_NUMBER_CHARS
            and event.value[0] in "+-.0123456789"
        ):
            message = f"a number of over {MOST_NUMBER_CHARS} characters; text needs quotes"
            raise UnreadableDocumentError(message, line=line)
