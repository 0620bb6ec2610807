"""What bodies that are read have in common."""

from __future__ import annotations

from pydantic import BaseModel, ConfigDict


class ReadBody(BaseModel):
    """What is answered with attributes of what a service returns: `model_validate` takes it."""

    model_config = ConfigDict(from_attributes=True)
