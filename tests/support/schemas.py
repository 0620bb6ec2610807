"""Documents drawn from the schemas of the API, valid ones and nearly valid ones."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from hypothesis import strategies as st

# Values of types that a schema does not allow, or not at that place.
NEARLY: Final = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.just([]),
    st.just({}),
    st.just([None]),
)
MOST: Final = 3
DEEPEST: Final = 6


def documents(schema: Mapping[str, Any], known: Mapping[str, Any]) -> st.SearchStrategy[Any]:
    """Return a strategy of documents of which most nearly fit a schema.

    Parameters
    ----------
    schema : mapping
        JSON Schema, as in OpenAPI.
    known : mapping
        Schemas by their name below ``#/components/schemas/``.
    """
    return _of(schema, known, 0)


def _of(  # noqa: PLR0911 - one for each kind of schema
    schema: Mapping[str, Any], known: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    if "$ref" in schema:
        return _of(known[schema["$ref"].rpartition("/")[2]], known, depth)
    for several in ("anyOf", "oneOf", "allOf"):
        if several in schema:
            return st.one_of(*(_of(one, known, depth) for one in schema[several]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"])
    if "const" in schema:
        return st.just(schema["const"])
    if depth >= DEEPEST:
        return NEARLY
    match schema.get("type"):
        case "object":
            return _objects(schema, known, depth)
        case "array":
            items = _spoiled(_of(schema.get("items", {}), known, depth + 1))
            least = min(schema.get("minItems", 0), MOST)
            return st.lists(items, min_size=least, max_size=MOST)
        case _:
            return _scalars(schema)


def _scalars(  # noqa: PLR0911 - as above
    schema: Mapping[str, Any],
) -> st.SearchStrategy[Any]:
    match schema.get("type"):
        case "integer":
            low = schema.get("minimum", -2)
            return st.integers(low, min(schema.get("maximum", low + 100), low + 100))
        case "number":
            return st.floats(-10, 1e6, allow_nan=False)
        case "boolean":
            return st.booleans()
        case "null":
            return st.none()
        case "string" if schema.get("format") == "uuid":
            return st.uuids().map(str)
        case "string" if schema.get("format") == "date-time":
            return st.datetimes().map(lambda moment: f"{moment.isoformat()}Z")
        case "string":
            return st.text(max_size=12)
        case _:
            return NEARLY


def _objects(
    schema: Mapping[str, Any], known: Mapping[str, Any], depth: int
) -> st.SearchStrategy[Any]:
    fields = {
        name: _spoiled(_of(one, known, depth + 1))
        for name, one in schema.get("properties", {}).items()
    }
    if not fields:
        return st.dictionaries(st.text(max_size=4), NEARLY, max_size=MOST)
    required = {name: fields[name] for name in schema.get("required", ()) if name in fields}
    optional = {name: one for name, one in fields.items() if name not in required}
    return st.one_of(
        st.fixed_dictionaries(required, optional=optional),
        # Without some of the required fields
        st.fixed_dictionaries({}, optional=fields),
    )


def _spoiled(good: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Return a strategy that draws from `good` nine times in ten, else any value."""
    return st.integers(0, 9).flatmap(lambda draw: NEARLY if draw == 0 else good)
