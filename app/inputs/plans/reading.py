"""What of a specification is read so far: parts that follow are held against it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from pydantic import ValidationInfo

from app.errors import Fault

# Reads the document that a `profile` names.
ProfileReader = Callable[[str], object]


@dataclass(slots=True)
class Reading:
    """The context in which pydantic checks a specification, in the order of its fields."""

    read_profile: ProfileReader | None = None
    document: object = None  # the specification as JSON types
    faults: list[Fault] = field(default_factory=list)  # what cannot be said of a single field
    layers: int = 0  # of the model; 0 where they cannot be counted
    predicts: bool = False  # whether a transformer's times are predicted for each device type
    speeds: dict[str, float] = field(default_factory=dict)  # of each device type so far

    def refuse(self, code: str, message: str, path: str) -> None:
        """Note a fault that is not of a single field."""
        self.faults.append(Fault(code, message, column=path))


def reading_of(info: ValidationInfo) -> Reading:
    """Return the context of a validator."""
    context = info.context
    assert isinstance(context, Reading)  # noqa: S101 - specifications are read through `parse_spec`
    return context
