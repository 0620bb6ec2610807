"""Form fields derived from the types that the API validates, and controls to sort and choose."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from pydantic import TypeAdapter

# text, secret: one line; area: several lines; lines: one value a line; pairs: ``name=value`` a
# line; flag: yes or no; checks: any subset of the options.
Control = Literal["text", "secret", "area", "number", "flag", "select", "lines", "pairs", "checks"]

_BY_TYPE: Final[Mapping[str, Control]] = {
    "object": "pairs",
    "integer": "number",
    "number": "number",
    "boolean": "flag",
}

# Fields with a larger maximum length hold text with line breaks, such as certificates.
LINE_CHARACTERS: Final = 5000

NAMES: Final = {"url": "URL", "urls": "URLs", "ca_certificate": "CA certificate"}


@dataclass(frozen=True, slots=True)
class Option:
    """An option of a choice: value and label."""

    value: str
    word: str
    hint: str = ""


@dataclass(frozen=True, slots=True)
class Field:
    """A field of a form."""

    id: str
    """Id of the field's control on the page."""
    path: str
    """Path of the field in the request's body and in returned faults: ``config.url``."""
    label: str
    """Label of the field."""
    control: Control
    optional: bool = False
    """Whether the field may be empty, and is empty by default."""
    removable: bool = False
    """Whether a value that is set may be removed."""
    hint: str = ""
    """Explanation of the field; may be empty."""
    example: str = ""
    """Example of a value; may be empty."""
    value: str = ""
    """Value of every control except checks; several lines are separated by line feeds."""
    inline: bool = False
    """Whether lines and pairs are written in one line, separated by commas."""
    options: Sequence[Option] = ()
    """Options of a selection or of checks."""
    chosen: Sequence[str] = ()
    """Values of the chosen options of checks."""
    minimum: int | None = None
    """Smallest allowed number; None without a limit."""
    maximum: int | None = None
    """Largest allowed number; None without a limit."""
    is_secret: bool = False
    """Whether the value is never shown; a secret that is left empty is kept."""
    is_set: bool = False
    """Whether the secret is set."""
    known_by: str = ""
    """The host of a secret that is an address."""


def fields_of(  # noqa: PLR0913 - what fields depend on
    adapter: TypeAdapter[Any],
    path: str,
    *,
    values: Mapping[str, Any] | None = None,
    secrets: frozenset[str] = frozenset(),
    stored: Mapping[str, str | None] | None = None,
    prefix: str = "",
) -> list[Field]:
    """Return the form fields of a dataclass.

    Parameters
    ----------
    values : mapping of str to Any, optional
        Present values of the fields; without it, their defaults.
    secrets : frozenset of str
        Names of fields whose values are never shown.
    stored : mapping of str to str or None, optional
        Names of the secrets that are set, with the host of each address.
    prefix : str
        Prefix of the ids, if a page has several forms.
    """
    schema = adapter.json_schema()
    required = schema.get("required", ())
    return [
        _field(
            name,
            _given(described),
            f"{path}.{name}",
            prefix=prefix,
            required=name in required,
            value=described.get("default") if values is None else values.get(name),
            secret=name in secrets,
            stored=stored or {},
        )
        for name, described in schema["properties"].items()
    ]


def label_of(name: str) -> str:
    """Return the label of a field: ``Signing secrets``."""
    return NAMES.get(name, name.replace("_", " ").capitalize())


def _given(described: Mapping[str, Any]) -> dict[str, Any]:
    """Return the value that a field has already."""
    merged = dict(described)
    for other in described.get("anyOf", ()):
        if other.get("type") != "null":
            merged |= other
    return merged


def _field(  # noqa: PLR0913 - what a field depends on
    name: str,
    described: Mapping[str, Any],
    path: str,
    *,
    prefix: str,
    required: bool,
    value: Any,  # noqa: ANN401 - of any type
    secret: bool,
    stored: Mapping[str, str | None],
) -> Field:
    control = _control(described, secret=secret)
    example = next(iter(described.get("examples", ())), "")
    return Field(
        id=f"{prefix}{path.replace('.', '-')}",
        path=path,
        label=label_of(name),
        control=control,
        optional=not required and described.get("default") in (None, []),
        removable=name in stored and not required,
        hint=described.get("description", ""),
        example=_text(example),
        value="" if secret or control == "checks" else _text(value),
        options=[
            Option(value, value)
            for value in described.get("enum") or described.get("items", {}).get("enum", ())
        ],
        chosen=tuple(value or ()) if control == "checks" else (),
        minimum=described.get("minimum"),
        maximum=described.get("maximum"),
        is_secret=secret,
        is_set=name in stored,
        known_by=stored.get(name) or "",
    )


def _control(described: Mapping[str, Any], *, secret: bool) -> Control:
    if "enum" in described:
        return "select"
    kind = described.get("type", "")
    if kind == "array":
        return "checks" if "enum" in described.get("items", {}) else "lines"
    if kind in _BY_TYPE:
        return _BY_TYPE[kind]
    # An address stays visible, because users check it before they save it; any other secret is
    # hidden.
    is_address = described.get("pattern", "").startswith("^http")
    if secret and not is_address:
        return "secret"
    return "area" if described.get("maxLength", 0) > LINE_CHARACTERS else "text"


def _text(value: Any) -> str:  # noqa: ANN401 - of any type
    """Return a value as the text in its form control."""
    if value is None or value is False:
        return ""
    if isinstance(value, dict):
        return "\n".join(f"{name}={content}" for name, content in value.items())
    if isinstance(value, list | tuple):
        return "\n".join(map(str, value))
    return str(value)


@dataclass(frozen=True, slots=True)
class Heading:
    """The heading of a column."""

    label: str
    classes: str
    hint: str = ""  # what it says more of itself
    url: str = ""  # the page in its order; empty if rows are not sorted by it
    order: str = ""  # ``ascending`` or ``descending`` where the rows are sorted by it, else empty


@dataclass(frozen=True, slots=True)
class Choice:
    """An option of a choice; a link to the page with this option if `url` is set."""

    value: str
    label: str
    chosen: bool
    url: str = ""
