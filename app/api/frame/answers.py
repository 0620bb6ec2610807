"""What answers have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ReadBody(BaseModel):
    """What is answered with attributes of what a service returns: `model_validate` takes it.

    A field of another name there is named by `validation_alias`.
    """

    model_config = ConfigDict(from_attributes=True, validate_by_alias=True, validate_by_name=True)
