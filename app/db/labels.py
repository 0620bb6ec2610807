"""What a session must be labeled with to be asked for."""

from __future__ import annotations

from typing import Any


def has_label(labels: Any, asked: str) -> Any:  # noqa: ANN401 - a column of JSON, and a condition
    """Return whether labels have one: ``name=value``, or the name of a label of any value."""
    name, has_value, value = asked.partition("=")
    found = labels[name.strip()].astext
    return found == value.strip() if has_value else found.is_not(None)
