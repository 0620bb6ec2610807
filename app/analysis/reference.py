"""The fields of a document, as the docstrings of its types describe them.

`app.analysis.report.reference` and `app.analysis.planning.reference` make pages of them.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from itertools import groupby
from typing import Any, Final, Literal, get_args, get_origin, get_type_hints

from app.analysis.json_text import json_name

_HEADING: Final = "Parameters\n----------\n"
_MEMBER: Final = re.compile(
    r"(?m)^(?P<names>\w+(?:, \w+)*) : (?P<kind>.*)\n(?P<text>(?:    .*\n)*)"
)
# What docstrings call by Python's names, as JSON has it.
_JSON_NAMES: Final = (
    (r"\bmapping of (?:int|str) to\b", "object of"),
    (r"\btuple\b", "array"),
    (r"\bfloat\b", "number"),
    (r"\bint\b", "integer"),
    (r"\bstr\b", "string"),
    (r"\bbool\b", "true or false"),
    (r"\bNone\b", "null"),
    (r", optional\b", ""),
)


@dataclass(frozen=True, slots=True)
class Member:
    """A key of an object: its type and its meaning in words."""

    key: str
    kind: str
    text: str
    optional: bool  # whether the key is missing where it does not apply


@dataclass(frozen=True, slots=True)
class Reference:
    """A page of the docs about the types of a document."""

    introduction: str  # what comes before the types, Markdown
    roots: tuple[type, ...]  # dataclasses; those of their members follow each
    # Unions that docstrings call by one name.
    unions: Mapping[str, object] = field(default_factory=dict)

    def types(self) -> list[type]:
        """Return the dataclasses of the document, each before those of its members."""
        found: list[type] = []
        for root in self.roots:
            _collect(root, found)
        return found

    def page(self) -> str:
        """Return the page, Markdown."""
        kinds = self.types()
        names = {kind.__name__ for kind in kinds}
        lines = [self.introduction]
        for kind in kinds:
            lines += [f"## {kind.__name__}", "", _code(summary(kind)), ""]
            lines += ["| key | type | meaning |", "| --- | --- | --- |"]
            for (words, text, optional), group in groupby(
                members(kind), lambda member: (member.kind, member.text, member.optional)
            ):
                keys = ", ".join(f"`{member.key}`" for member in group)
                missing = " May be missing." if optional else ""
                meaning = re.sub(r"\bNone\b", "null", _code(text)) + missing
                lines.append(f"| {keys} | {self._linked(words, names)} | {meaning} |")
            lines.append("")
        return "\n".join(lines).rstrip() + "\n"

    def _linked(self, kind: str, names: set[str]) -> str:
        for alias, union in self.unions.items():
            kind = re.sub(rf"\b{alias}\b", ", ".join(m.__name__ for m in get_args(union)), kind)
        for pattern, name in _JSON_NAMES:
            kind = re.sub(pattern, name, kind)
        return re.sub(
            r"\w+",
            lambda word: f"[{word[0]}](#{word[0].lower()})" if word[0] in names else word[0],
            _code(kind),
        )


def summary(kind: type) -> str:
    """Return what an object is."""
    return _docstring(kind).partition("\n\n")[0].replace("\n", " ")


def members(kind: type) -> list[Member]:
    """Return the keys of an object.

    Raises
    ------
    KeyError
        A field has no description.
    """
    described: dict[str, tuple[str, str]] = {}
    for base in reversed(kind.__mro__[:-1]):
        described |= dict(field_texts(_docstring(base)))
    hints = get_type_hints(kind)
    found = []
    for item in fields(kind):
        constant = get_args(hints[item.name])
        if get_origin(hints[item.name]) is Literal and len(constant) == 1:
            words, text = f"``{constant[0]}``", "Which object this is."
        else:
            words, text = described[item.name]
        found.append(Member(json_name(item.name), words, text, "omitted" in item.metadata))
    return found


def _collect(kind: Any, found: list[type]) -> None:  # noqa: ANN401 - any annotation
    if is_dataclass(kind) and isinstance(kind, type):
        if kind not in found:
            found.append(kind)
            hints = get_type_hints(kind)
            for item in fields(kind):
                _collect(hints[item.name], found)
        return
    for part in get_args(kind):
        _collect(part, found)


def _docstring(kind: type) -> str:
    return inspect.cleandoc(kind.__doc__ or "") + "\n"


def field_texts(docstring: str) -> Iterator[tuple[str, tuple[str, str]]]:
    """Yield the fields that a docstring describes, each with its type and its meaning."""
    for member in _MEMBER.finditer(docstring.partition(_HEADING)[2]):
        meaning = " ".join(member["text"].split())
        for name in member["names"].split(", "):
            yield name, (member["kind"], meaning)


def _code(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
