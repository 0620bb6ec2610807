"""The kinds of values that settings have, as the environment writes them."""

from __future__ import annotations

import base64
import binascii
import ipaddress
import re
from typing import Annotated, Final, Literal
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, Field
from pydantic_settings import NoDecode

from app.access.roles import GroupRole

HOST_NAME: Final = re.compile(r"[\w.-]+|[0-9A-Fa-f]*:[0-9A-Fa-f:.]*:[0-9A-Fa-f:.]*", re.ASCII)
POSTGRES_URL: Final = re.compile(r"postgres(ql(\+psycopg)?)?://")
SECRET_KEY_BYTES: Final = 32


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _split(value: object) -> object:
    """Take a list as the environment writes it: separated by commas."""
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


# For what names the installation: empty, it is a value that was forgotten.
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
