"""The version of this distribution, which `pyproject.toml` reads."""

from __future__ import annotations

from typing import Final

VERSION: Final = "0.2.0"
