"""The settings as they are shown to people, without secrets."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from app.platform.settings.fields import SECRET, Settings, as_text
from app.platform.settings.kinds import variable

HIDDEN: Final = "set, not shown"
PASSWORD_OF_A_URL: Final = re.compile(r"(?<=://)([^/@]*):[^/]*@")


@dataclass(frozen=True, slots=True)
class ShownSetting:
    """A setting as it is shown to people."""

    variable: str
    value: str
    origin: str
    """``environment``, ``default``, or the path of the file that contains the value."""


def shown(settings: Settings) -> Iterator[ShownSetting]:
    """Yield every setting without secrets, with the source of its value."""
    for name, value in settings:
        origin = "environment" if name in settings.model_fields_set else "default"
        if name == "secret_keys" and not value and os.access(settings.key_file, os.F_OK):
            yield ShownSetting(variable(name), HIDDEN, f"file {settings.key_file}")
        elif value in (None, (), ""):
            yield ShownSetting(variable(name), "unset", origin)
        else:
            text = HIDDEN if name in SECRET else without_password(as_text(value))
            yield ShownSetting(variable(name), text, origin)


def without_password(text: str) -> str:
    """Return an address with its password hidden."""
    return PASSWORD_OF_A_URL.sub(r"\1:***@", text)
