"""Reference of a document's fields: their types and the docstrings below them.

The documentation's site lists the fields, and the OpenAPI document takes field descriptions from
here.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import Enum
from functools import cache
from itertools import groupby, pairwise
from types import NoneType, UnionType
from typing import Any, Final, Literal, Union, get_args, get_origin, get_type_hints

from app.analysis.json_text import json_name

# JSON's name of each Python type.
_JSON_TYPES: Final = {
    float: "number",
    int: "integer",
    str: "string",
    bool: "true or false",
    NoneType: "null",
}


@dataclass(frozen=True, slots=True)
class Member:
    """A key of an object: its type and its meaning in words."""

    key: str
    kind: str
    text: str
    optional: bool  # whether the key is missing where it does not apply


@dataclass(frozen=True, slots=True)
class Reference:
    """The types of a document, as a page of the documentation lists them."""

    roots: tuple[type, ...]  # dataclasses; those of their members follow each

    def types(self) -> list[type]:
        """Return the dataclasses of the document, each before the classes of its members."""
        kinds: list[type] = []
        for root in self.roots:
            collect(root, kinds)
        return kinds

    def tables(self) -> str:
        """Return Markdown: a section with a table of fields for each type."""
        lines = []
        for kind in self.types():
            lines += [f"## {kind.__name__}", "", _code(summary(kind)), ""]
            lines += ["| key | type | meaning |", "| --- | --- | --- |"]
            for (words, text, optional), group in groupby(
                members(kind), lambda member: (member.kind, member.text, member.optional)
            ):
                keys = ", ".join(f"`{member.key}`" for member in group)
                missing = " May be missing." if optional else ""
                lines.append(f"| {keys} | {words} | {_code(text)}{missing} |")
            lines.append("")
        return "\n".join(lines).rstrip() + "\n"


def summary(kind: type) -> str:
    """Return the summary of an object."""
    return (inspect.getdoc(kind) or "").partition("\n\n")[0].replace("\n", " ")


def members(kind: type) -> list[Member]:
    """Return the keys of an object.

    Raises
    ------
    KeyError
        A field has no docstring.
    """
    described = field_docs(kind)
    hints = get_type_hints(kind)
    keys = []
    for item in fields(kind):
        hint, optional = hints[item.name], "omitted" in item.metadata
        constant = get_origin(hint) is Literal and len(get_args(hint)) == 1
        text = "Which object this is." if constant else described[item.name]
        keys.append(Member(json_name(item.name), _words(hint, optional=optional), text, optional))
    return keys


def field_docs(kind: type) -> dict[str, str]:
    """Return the docstring below each field of a class and its bases, by field name."""
    docs: dict[str, str] = {}
    for base in reversed(kind.__mro__[:-1]):
        docs |= _field_docs(base.__module__).get(base.__qualname__, {})
    return docs


@cache
def _field_docs(module: str) -> Mapping[str, Mapping[str, str]]:
    """Return the docstrings of a module's dataclass fields, by class name, then by field name."""
    tree = ast.parse(inspect.getsource(sys.modules[module]))
    classes = (item for item in tree.body if isinstance(item, ast.ClassDef))
    return {item.name: dict(_documented(item.body)) for item in classes}


def _documented(body: Iterable[ast.stmt]) -> Iterator[tuple[str, str]]:
    for statement, following in pairwise(body):
        match statement, following:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(text))),
            ):
                yield name, re.sub(r"\bNone\b", "null", " ".join(text.split()))


def collect(kind: Any, kinds: list[type]) -> None:  # noqa: ANN401 - any annotation
    """Collect a class and the classes of its fields: dataclasses and pydantic models."""
    if isinstance(kind, type) and (is_dataclass(kind) or hasattr(kind, "model_fields")):
        if kind not in kinds:
            kinds.append(kind)
            for hint in get_type_hints(kind).values():
                collect(hint, kinds)
        return
    for part in get_args(kind):
        collect(part, kinds)


def _words(hint: Any, *, optional: bool = False) -> str:  # noqa: ANN401, PLR0911 - a line for each kind
    """Return a type's JSON name in Markdown; an optional member has no key instead of null."""
    if hint in _JSON_TYPES:
        return _JSON_TYPES[hint]
    if is_dataclass(hint) and isinstance(hint, type):
        return f"[{hint.__name__}](#{hint.__name__.lower()})"
    origin, parts = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _either([f"`{member.value}`" for member in hint])
    if origin is Literal:
        return _either([f"`{value}`" for value in parts])
    if origin in {Union, UnionType}:
        return _either([_words(part) for part in parts if not (optional and part is NoneType)])
    if origin is tuple and parts[-1] is ...:
        of_one = _words(parts[0])
        return f"array of ({of_one})" if " or " in of_one else f"array of {of_one}"
    if origin is tuple:
        return f"({', '.join(map(_words, parts))})"
    return f"object of {_words(parts[1])}"


def _either(words: list[str]) -> str:
    return " or ".join(filter(None, (", ".join(words[:-1]), words[-1])))


def _code(text: str) -> str:
    return text.replace("``", "`").replace("|", "\\|")
