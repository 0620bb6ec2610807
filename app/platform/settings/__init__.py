"""The configuration: a frozen object, the only place that reads environment variables."""

from __future__ import annotations

from app.platform.settings.fields import MIB, Settings
from app.platform.settings.kinds import default_data_dir

__all__ = ["MIB", "Settings", "default_data_dir"]
