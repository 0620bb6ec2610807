"""The OpenAPI document describes the fields of answers by the docstrings below them."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from app.installation.api import explain


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered.

    In more words.
    """

    cost: float | None
    """GPU-hours;
    None where nothing was lost.
    """
    first: int
    """A step."""
    job: str


def test_the_descriptions_of_fields_are_at_their_properties() -> None:
    schema = TypeAdapter(Answer).json_schema()
    explain({"Answer": schema, "None": {"type": "null"}}, [Answer])
    assert schema["description"] == "What is answered.\n\nIn more words."
    described = {name: field.get("description") for name, field in schema["properties"].items()}
    assert described == {
        "cost": "GPU-hours; null where nothing was lost.",
        "first": "A step.",
        "job": None,
    }
