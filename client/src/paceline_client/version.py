"""The version of this distribution; `pyproject.toml` reads it."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
