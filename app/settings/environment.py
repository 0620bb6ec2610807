"""The environment: the variables with our prefix, and what they may be called."""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

PREFIX: Final = "PACELINE_"

# What else has our prefix and is no setting of the server.
OF_COMMANDS: Final = ("PASSWORD", "PROJECT", "SERVER", "TOKEN")
OF_THE_CLIENT: Final = ("NODE", "PULSE_S", "RESTART", "RUN_ID", "SPOOL", "URL")
OF_COMPOSE: Final = ("PUBLISHED_PORT",)
OF_TESTS: Final = (
    "LARGE_MB",
    "NIGHTLY",
    "REFERENCE_DATA",
    "REFERENCE_PROFILE",
    "REQUIRE_ALL",
    "REQUIRE_EXTRAS",
    "SCREENSHOTS",
    "TEST_POSTGRES_BIN",
    "TORCH_PYTHON",
    "WRITE_PAGES",
)

# Kubernetes tells a pod of every Service: of one called paceline it sets PACELINE_PORT, and of one
# called paceline-db PACELINE_DB_PORT_5432_TCP_ADDR.
SERVICE_LINK: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
SERVICE_PORT: Final = re.compile(r"(\w+_)?PORT")
SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def default_data_dir() -> Path:
    """Return where embedded data lives: /var/lib for root, the XDG data home for others."""
    if os.geteuid() == 0:
        return Path("/var/lib/paceline/data")
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "paceline"


@dataclass(frozen=True, slots=True)
class Caller:
    """Who asks a server, for a command.

    From the environment alone: what stands in a command, every process of the machine can read.
    """

    token: str | None
    project: str | None

    @classmethod
    def of_environment(cls) -> Self:
        """Return who the environment says; empty variables count as unset."""
        return cls(*(os.environ.get(f"{PREFIX}{name}") or None for name in ("TOKEN", "PROJECT")))


def given_password() -> str | None:
    """Return the password that the environment gives to a command; None where it gives none."""
    return os.environ.get(f"{PREFIX}PASSWORD")


def variable(name: str) -> str:
    """Return the variable of a setting."""
    return f"{PREFIX}{name.upper()}"


def variables() -> dict[str, str]:
    """Return the variables with our prefix, by what follows it in lower case."""
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and not _is_service_link(name[len(PREFIX) :], value)
    }


def _is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes set a variable, named without our prefix."""
    if SERVICE_LINK.fullmatch(name):
        return True
    return bool(SERVICE_PORT.fullmatch(name) and SERVICE_ADDRESS.match(value))


def unknown(settings: Collection[str]) -> Iterator[str]:
    """Yield a sentence about each variable that is none of these settings and of nothing else."""
    others = {name.lower() for name in (*OF_COMMANDS, *OF_THE_CLIENT, *OF_COMPOSE, *OF_TESTS)}
    for name in sorted(variables()):
        if name not in settings and name not in others:
            yield _unknown(name, settings)


def _unknown(name: str, settings: Collection[str]) -> str:
    near = difflib.get_close_matches(name, settings, n=1)
    meant = f": did you mean {variable(near[0])}?" if near else ""
    return f"{variable(name)} is not a setting{meant}"
