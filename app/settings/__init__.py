"""The configuration: one frozen object, the only reader of the environment."""

from app.settings.environment import default_data_dir
from app.settings.fields import MIB, Settings

__all__ = ["MIB", "Settings", "default_data_dir"]
