"""Containers as use cases take them: in the project that every installation has."""

from __future__ import annotations

from typing import TYPE_CHECKING

from app import bootstrap
from app.db.models.access import DEFAULT_PROJECT_ID

if TYPE_CHECKING:
    from app.bootstrap import Container
    from app.settings import Settings


def build(settings: Settings) -> Container:
    """Return the container that the program builds, in the project `default`."""
    return bootstrap.build(settings).within(DEFAULT_PROJECT_ID)
