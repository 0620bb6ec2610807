"""The OpenAPI document: what the docstrings of answers say of their fields stands at these."""

from __future__ import annotations

from dataclasses import dataclass

from pydantic import TypeAdapter

from app.api.frame.docs import explain


@dataclass(frozen=True, slots=True)
class Answer:
    """What is answered.

    In more words.

    Parameters
    ----------
    cost : float or None
        GPU-hours;
        None where nothing was lost.
    first, last : int
        A step.
    job : str
    """

    cost: float | None
    first: int
    last: int
    job: str


def test_the_words_of_fields_stand_at_their_properties() -> None:
    schema = TypeAdapter(Answer).json_schema()
    explain({"Answer": schema, "None": {"type": "null"}})
    assert schema["description"] == "What is answered.\n\nIn more words."
    described = {name: field.get("description") for name, field in schema["properties"].items()}
    assert described == {
        "cost": "GPU-hours; null where nothing was lost.",
        "first": "A step.",
        "last": "A step.",
        "job": None,
    }
