"""Pydantic's errors, as faults with our codes and paths."""

from __future__ import annotations

import re
import sys
import uuid
from typing import Annotated, Literal

import pytest
from pydantic import AwareDatetime, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError
from pydantic_core import ErrorDetails
from pydantic_core._pydantic_core import list_all_errors

from app.bootstrap import build
from app.incidents.models.tables import DeliveryState
from app.platform.settings import Settings
from app.platform.validation import (
    MOST_FAULTS,
    MOST_KEYS,
    PYDANTICS,
    WORDS,
    Name,
    Positive,
    Whole,
    Written,
    faults_of,
    field_faults,
    path_of,
    predicate,
)

BOUNDS = (
    "greater_than",
    "greater_than_equal",
    "less_than",
    "less_than_equal",
    "multiple_of",
)
CODES = {"extra_forbidden": "unknown_key", "greater_than": "out_of_range"}


class Inner(Written):
    size: Positive
    name: Name = "a"


class Outer(Written):
    rows: list[Inner] = []  # noqa: RUF012 - pydantic copies defaults
    table: dict[Whole, Positive] = {}  # noqa: RUF012 - as above


def found(document: object, inner: str = "") -> list[tuple[str, str | None, str]]:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate(document)
    faults = faults_of(caught.value, CODES, "bad_type", root="the document", inner=inner)
    return [(fault.code, fault.column, fault.message) for fault in faults]


def test_each_fault_has_its_code_its_path_and_a_sentence() -> None:
    wrong = {"rows": [{"size": 0}, {"name": 7, "foo": 1}], "table": {"x": 1}}
    assert found(wrong) == [
        ("out_of_range", "rows[0].size", "rows[0].size must be greater than 0"),
        ("bad_type", "rows[1].size", "rows[1].size is missing"),
        ("unknown_key", "rows[1].foo", "rows[1].foo is not known here"),
        ("bad_type", "table.x", "table.x must be a whole number"),
    ]


def test_a_fault_of_the_whole_document_has_no_path() -> None:
    ((code, path, message),) = found([1])
    assert (code, path) == ("bad_type", "")
    assert message.startswith("the document must be")


def test_parts_of_a_document_inside_another_have_paths_of_their_own() -> None:
    assert [path for _, path, _ in found({"rows": 1}, inner="rows")] == [""]
    assert [path for _, path, _ in found({"rows": [{}]}, inner="rows")] == ["[0].size"]


def test_a_flood_of_faults_is_cut() -> None:
    assert len(found({str(key): 1 for key in range(2 * MOST_FAULTS)})) == MOST_FAULTS


def test_a_mapping_of_thousands_is_one_fault() -> None:
    large = {str(key): 1 for key in range(MOST_KEYS + 1)}
    assert found({"rows": [large]}) == [
        ("bad_type", "rows[0]", f"rows[0] must have at most {MOST_KEYS} keys")
    ]


def test_faults_of_fields_have_our_words_and_no_values() -> None:
    with pytest.raises(ValidationError) as caught:
        Outer.model_validate({"rows": [{"size": "SECRET"}]})
    faults = field_faults(caught.value.errors(), "config")
    assert [(fault.code, fault.column) for fault in faults] == [
        ("float_parsing", "config.rows.0.size")
    ]
    assert "SECRET" not in repr(faults)
    [fault] = field_faults(caught.value.errors(), skip=1)
    assert fault.column == "0.size"


def test_marks_in_brackets_are_in_no_path() -> None:
    assert path_of(("network", "allreduce_in_node_ms", "7", "[key]")) == (
        "network.allreduce_in_node_ms.7"
    )
    assert path_of(("model", "layers", 3, "forward_ms")) == "model.layers[3].forward_ms"


@pytest.mark.parametrize(
    ("value", "read"), [(2, 2.0), ("1e9", 1e9), (" 3 ", 3.0), (0.5, 0.5), ("1_000", 1000.0)]
)
def test_numbers_are_read_as_yaml_and_json_write_them(value: object, read: float) -> None:
    assert Inner.model_validate({"size": value}).size == read


@pytest.mark.parametrize("value", [True, None, "x", "nan", "inf", [], 10**400])
def test_a_value_that_is_no_number_is_refused(value: object) -> None:
    assert found({"rows": [{"size": value}]})[0][:2] == ("bad_type", "rows[0].size")


def test_names_that_yaml_reads_as_numbers_are_names() -> None:
    assert Inner.model_validate({"size": 1, "name": 4090}).name == "4090"
    for value in (True, "", "x" * 101, "a\x00", 1.5):
        assert found({"rows": [{"size": 1, "name": value}]})[0][:2] == ("bad_type", "rows[0].name")


def test_no_word_of_the_library_reaches_a_user() -> None:
    class Everything(BaseModel):
        model_config = ConfigDict(extra="forbid", strict=False)

        text: Annotated[str, Field(min_length=1)] = "a"
        long: Annotated[str, Field(max_length=2)] = "a"
        formed: Annotated[str, Field(pattern="^a$")] = "a"
        number: Annotated[int, Field(ge=1, le=9)] = 1
        real: Annotated[float, Field(gt=0, lt=1, allow_inf_nan=False)] = 0.5
        flag: bool = True
        state: DeliveryState = DeliveryState.WAITING
        kind: Literal["a", "b"] = "a"
        several: Annotated[list[int], Field(min_length=1, max_length=2)] = [1]
        named: dict[str, int] = {}
        at: AwareDatetime | None = None
        id: uuid.UUID | None = None
        inner: Inner | None = None

    wrong: dict[str, list[object]] = {
        "text": ["", 7, None],
        "long": ["abc"],
        "formed": ["b"],
        "number": [0, 10, "x", 1.5, None, "9" * 5000],
        "real": [0, 1, "x", None, float("nan")],
        "flag": ["maybe", None],
        "state": ["gone", 7],
        "kind": ["c"],
        "several": [[], [1, 2, 3], "x"],
        "named": [[], 7],
        "at": ["yesterday", "2026-11-25T10:00:00", []],
        "id": ["7", 7],
        "inner": [[], {"size": 1, "more": 2}],
        "unknown": [1],
    }
    for name, values in wrong.items():
        for value in values:
            with pytest.raises(ValidationError) as caught:
                Everything.model_validate({name: value})
            for fault in field_faults(caught.value.errors()):
                said = fault.message
                assert not re.search(r"Input|String|should|valid (integer|number)", said), said


# The errors of each kind of schema; the kinds in our models are looked up below.
RAISED: dict[str, set[str]] = {
    "str": {
        "string_type",
        "string_too_short",
        "string_too_long",
        "string_pattern_mismatch",
        "string_unicode",
    },
    "int": {"int_type", "int_parsing", "int_parsing_size", "int_from_float", *BOUNDS},
    "float": {"float_type", "float_parsing", "finite_number", *BOUNDS},
    "bool": {"bool_type", "bool_parsing"},
    "list": {"list_type", "too_short", "too_long"},
    "tuple": {"tuple_type", "too_short", "too_long", "missing"},
    "dict": {"dict_type", "mapping_type", "too_short", "too_long", "invalid_key"},
    "datetime": {
        "datetime_type",
        "datetime_parsing",
        "datetime_object_invalid",
        "datetime_from_date_parsing",
        "timezone_aware",
        "timezone_naive",
        "timezone_offset",
    },
    "timedelta": {"time_delta_type", "time_delta_parsing"},
    "uuid": {"uuid_type", "uuid_parsing", "uuid_version"},
    "literal": {"literal_error"},
    "enum": {"enum"},
    "none": {"none_required"},
    "is-instance": {"is_instance_of"},
    "tagged-union": {"union_tag_invalid", "union_tag_not_found"},
    "model": {"model_type", "model_attributes_type"},
    "model-fields": {"missing", "extra_forbidden", "model_attributes_type", "invalid_key"},
    "dataclass": {"dataclass_type", "dataclass_exact_type"},
    "dataclass-args": {"missing", "unexpected_keyword_argument", "unexpected_positional_argument"},
    "typed-dict": {"dict_type", "missing", "extra_forbidden", "invalid_key"},
    "bytes": {"bytes_type", "bytes_too_short", "bytes_too_long"},
    "function": {"value_error", "assertion_error"},
}
# Kinds that only contain other schemas, and raise nothing themselves.
FRAMES = {
    "any",
    "chain",
    "computed-field",
    "dataclass-field",
    "default",
    "definition-ref",
    "definitions",
    "json-or-python",
    "lax-or-strict",
    "model-field",
    "no-info",
    "nullable",
    "typed-dict-field",
    "union",
    "with-info",
}
OF_PYDANTIC = re.compile(r"Input|String|should|valid (integer|number|string)|[Uu]nable")


def _kinds(schema: object) -> set[str]:
    """Return the kinds of schemas that a schema consists of."""
    if isinstance(schema, list | tuple):
        return {kind for part in schema for kind in _kinds(part)}
    if not isinstance(schema, dict):
        return set()
    own = {schema["type"]} if isinstance(schema.get("type"), str) else set()
    return own | {kind for part in schema.values() for kind in _kinds(part)}


def _schemas() -> list[object]:
    """Return all schemas with which the program validates documents."""
    build(Settings(database_url="postgresql+psycopg://unknown@127.0.0.1:1/none"))
    modules = [name for name in sys.modules if name.startswith("app.")]
    models = [
        value
        for name in modules
        for value in vars(sys.modules[name]).values()
        if isinstance(value, TypeAdapter)
        # Modules also contain models of libraries.
        or (
            isinstance(value, type)
            and issubclass(value, BaseModel)
            and value.__module__.startswith("app.")
        )
    ]
    return [
        model.core_schema if isinstance(model, TypeAdapter) else model.__pydantic_core_schema__
        for model in models
    ]


def test_every_error_that_a_model_of_ours_can_raise_has_words_of_ours() -> None:
    import app.web  # noqa: F401, PLC0415 - loads the models of all routes

    kinds = _kinds(_schemas()) - FRAMES
    kinds = {"function" if kind.startswith("function-") else kind for kind in kinds}

    assert kinds <= RAISED.keys()
    assert {"str", "float", "tagged-union", "datetime", "uuid", "model"} <= kinds
    assert set().union(*(RAISED[kind] for kind in kinds)) | {"json_invalid"} <= WORDS.keys()


@pytest.mark.parametrize("kind", sorted(PYDANTICS))
def test_no_error_keeps_the_words_of_pydantic(kind: str) -> None:
    example = next(known for known in list_all_errors() if known["type"] == kind)
    context = example.get("example_context")
    item = ErrorDetails(
        type=kind,
        loc=("field",),
        msg=example["message_template_python"],
        input="",
        ctx=context or {},
    )

    said = predicate(item)

    assert not OF_PYDANTIC.search(said), said
    assert said or kind in {"value_error", "assertion_error"}
    assert said != item["msg"] or kind in {"value_error", "assertion_error"}
