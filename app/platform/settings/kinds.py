"""Types of settings' values, parsed from the texts of environment variables."""

from __future__ import annotations

import base64
import binascii
import difflib
import ipaddress
import os
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from app.errors import InvalidSettingsError
from app.platform.identity import GroupRole

HOST_NAME: Final = re.compile(r"[\w.-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", re.ASCII)
POSTGRES_URL: Final = re.compile(r"postgres(ql(\+psycopg)?)?://")
SECRET_KEY_BYTES: Final = 32


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _split(value: object) -> object:
    """Split a comma-separated list."""
    if isinstance(value, str):
        return tuple(name.strip() for name in value.split(",") if name.strip())
    return value


def _not_empty(value: object) -> object:
    if value == "":
        raise ValueError("is empty: unset it for the default, or say which is meant")
    return value


def _of_postgres(value: str) -> str:
    if not POSTGRES_URL.match(value):
        raise ValueError("must begin with postgresql+psycopg:// or postgresql://")
    return value


def _web_address(value: str) -> str:
    parts = urlsplit(value)
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("must be an address, as https://paceline.example")
    return value


def _host_names(value: tuple[str, ...]) -> tuple[str, ...]:
    for name in value:
        if not HOST_NAME.fullmatch(name):
            raise ValueError(
                "must be host names without scheme and port, as paceline.example, separated by "
                f"commas; {name!r} is none"
            )
    return value


def _secret_keys(value: tuple[str, ...]) -> tuple[str, ...]:
    for key in value:
        try:
            size = len(base64.urlsafe_b64decode(key))
        except (binascii.Error, ValueError):
            size = 0
        if size != SECRET_KEY_BYTES:
            raise ValueError(
                f"must be {SECRET_KEY_BYTES} bytes in URL-safe base64 each, as "
                "`openssl rand -base64 32 | tr '+/' '-_'` prints"
            )
    return value


def _networks(value: tuple[str, ...]) -> tuple[str, ...]:
    for network in value:
        try:
            ipaddress.ip_network(network)
        except ValueError as error:
            raise ValueError(
                "must be networks, as 10.0.0.0/8 (no bit after the prefix is 1), separated by "
                f"commas; {network!r} is none"
            ) from error
    return value


def _roles(value: tuple[str, ...]) -> tuple[str, ...]:
    for text in value:
        try:
            GroupRole.parse(text)
        except ValueError as error:
            raise ValueError(
                "must be roles of groups, as sre=administrator or team=operator@project, separated "
                f"by commas; {text!r} is none"
            ) from error
    return value


# For settings that identify the installation: an empty text means that the value was forgotten.
NotEmpty: Final = BeforeValidator(_not_empty)

Count = Annotated[int, Field(ge=1)]
Seconds = Annotated[float, Field(gt=0, allow_inf_nan=False)]
SecondsOrNone = Annotated[float, Field(ge=0, allow_inf_nan=False)]
LogLevel = Annotated[
    Literal["debug", "info", "warning", "error", "critical"], BeforeValidator(_lower)
]
PostgresUrl = Annotated[str, AfterValidator(_of_postgres)]
WebAddress = Annotated[str, AfterValidator(_web_address)]

_Texts = Annotated[tuple[str, ...], NoDecode, BeforeValidator(_split)]
HostNames = Annotated[_Texts, AfterValidator(_host_names)]
SecretKeys = Annotated[_Texts, AfterValidator(_secret_keys)]
Networks = Annotated[_Texts, AfterValidator(_networks)]
GroupRoles = Annotated[_Texts, AfterValidator(_roles)]


# ---- The environment: variables with our prefix, and their valid names -------------------------


PREFIX: Final = "PACELINE_"

# Other variables with our prefix, which are no settings of the server.
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

# Kubernetes sets variables of every Service in a pod: PACELINE_PORT for a Service called paceline,
# PACELINE_DB_PORT_5432_TCP_ADDR for one called paceline-db.
SERVICE_LINK: Final = re.compile(
    r"(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT_\d+_(TCP|UDP|SCTP)(_(PROTO|PORT|ADDR))?)"
)
SERVICE_PORT: Final = re.compile(r"(\w+_)?PORT")
SERVICE_ADDRESS: Final = re.compile(r"(tcp|udp|sctp)://")


def default_data_dir() -> Path:
    """Return the default data directory: /var/lib for root, the XDG data home for other users."""
    if os.geteuid() == 0:
        return Path("/var/lib/paceline/data")
    home = os.environ.get("XDG_DATA_HOME")
    return (Path(home) if home else Path.home() / ".local" / "share") / "paceline"


@dataclass(frozen=True, slots=True)
class Caller:
    """Token, user and project with which a command calls a server.

    They come from the environment only: every process of the machine can read the arguments of a
    command.
    """

    token: str | None
    project: str | None

    @classmethod
    def of_environment(cls) -> Self:
        """Return the caller that the environment describes; empty variables count as unset.

        Raises
        ------
        InvalidSettingsError
            If a variable cannot be sent in a header.
        """
        # A file that a variable was read from ends with a line break.
        values = [os.environ.get(f"{PREFIX}{name}", "").strip() for name in ("TOKEN", "PROJECT")]
        for name, value in zip(("TOKEN", "PROJECT"), values, strict=True):
            if not (value.isascii() and value.isprintable()):
                raise InvalidSettingsError(
                    f"{PREFIX}{name} has a character that is not printable ASCII."
                )
        return cls(*(value or None for value in values))


def given_password() -> str | None:
    """Return the password in the environment; None if the variable is unset."""
    return os.environ.get(f"{PREFIX}PASSWORD")


def variable(name: str) -> str:
    """Return the name of a setting's environment variable."""
    return f"{PREFIX}{name.upper()}"


def variables() -> dict[str, str]:
    """Return the variables with our prefix, by the lower-case name after the prefix."""
    return {
        name[len(PREFIX) :].lower(): value
        for name, value in os.environ.items()
        if name.upper().startswith(PREFIX) and not _is_service_link(name[len(PREFIX) :], value)
    }


def _is_service_link(name: str, value: str) -> bool:
    """Return whether Kubernetes set a variable, given its name without our prefix."""
    if SERVICE_LINK.fullmatch(name):
        return True
    return bool(SERVICE_PORT.fullmatch(name) and SERVICE_ADDRESS.match(value))


def unknown(settings: Collection[str]) -> Iterator[str]:
    """Yield a sentence for each unknown variable with our prefix."""
    others = {name.lower() for name in (*OF_COMMANDS, *OF_THE_CLIENT, *OF_COMPOSE, *OF_TESTS)}
    for name in sorted(variables()):
        if name not in settings and name not in others:
            near = difflib.get_close_matches(name, settings, n=1)
            meant = f": did you mean {variable(near[0])}?" if near else ""
            yield f"{variable(name)} is not a setting{meant}"
