"""Secrets of channels, encrypted at rest.

Fernet (AES-128-CBC with HMAC-SHA256) of the library `cryptography`, with several keys: the first
encrypts, each decrypts. To change a key, put the new one first, run ``paceline alerts reseal``, and
take the old one away.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from cryptography.fernet import Fernet, InvalidToken, MultiFernet
from sqlalchemy import select, update

from app.errors import SecretKeyError
from app.incidents.models.tables import AlertChannel
from app.platform.container import Container
from app.platform.settings import Settings


def seal(settings: Settings, secrets: dict[str, Any]) -> bytes:
    """Return secrets encrypted; makes the key file where there is no key yet.

    Raises
    ------
    SecretKeyError
        If a key cannot be read or written.
    """
    return _box(settings, create=True).encrypt(json.dumps(secrets).encode())


def unseal(settings: Settings, sealed: bytes) -> dict[str, Any]:
    """Return what was encrypted.

    Raises
    ------
    SecretKeyError
        If there is no key, or none of them is the right one.
    """
    try:
        text = _box(settings, create=False).decrypt(sealed)
    except InvalidToken:
        raise SecretKeyError(
            "The channel's secrets were encrypted with another key. Every process needs the same "
            "PACELINE_SECRET_KEYS or PACELINE_SECRET_KEY_FILE."
        ) from None
    document: dict[str, Any] = json.loads(text)
    return document


def hints(secrets: Mapping[str, Any]) -> dict[str, str | None]:
    """Return which secrets are set; of an address, the host: what people know a channel by."""
    return {name: _host(value) for name, value in secrets.items()}


def check_secrets(container: Container) -> int:
    """Store of every channel whether the keys open its secrets, and what may be shown of them.

    For the sweeper: it has the keys of the workers that deliver, and pages then need none.

    Returns
    -------
    int
        How many channels are different from what was stored.
    """
    with container.reading() as tx:
        rows = tx.session.execute(
            select(
                AlertChannel.id,
                AlertChannel.secrets,
                AlertChannel.secret_hints,
                AlertChannel.readable,
            ).order_by(AlertChannel.id)
        ).all()
    changed = 0
    for id_, sealed, stored, readable in rows:
        try:
            found = {"readable": True, "secret_hints": hints(unseal(container.settings, sealed))}
        except SecretKeyError:
            found = {"readable": False, "secret_hints": stored}
        if found == {"readable": readable, "secret_hints": stored}:
            continue
        with container.uow() as tx:
            # Unless it was given other secrets meanwhile.
            tx.session.execute(
                update(AlertChannel)
                .where(AlertChannel.id == id_, AlertChannel.secrets == sealed)
                .values(found)
            )
        changed += 1
    return changed


def _host(value: object) -> str | None:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return urlsplit(value).hostname
    return None


def _box(settings: Settings, *, create: bool) -> MultiFernet:
    keys = list(settings.secret_keys) or _from_file(settings, create=create)
    try:
        return MultiFernet([Fernet(key) for key in keys])
    except ValueError as error:
        raise SecretKeyError(
            "A secret key is 32 bytes as URL-safe base64: make one with "
            "`python -c 'from cryptography.fernet import Fernet; "
            "print(Fernet.generate_key().decode())'`."
        ) from error


def _from_file(settings: Settings, *, create: bool) -> list[str]:
    path = settings.key_file
    try:
        # Only the default file is made: an operator who names a path fills it.
        if create and settings.secret_key_file is None and not path.exists():
            _make(path)
        lines = path.read_text(encoding="ascii").split()
    except (OSError, UnicodeError) as error:
        raise SecretKeyError(
            f"There is no secret key: {error}. Set PACELINE_SECRET_KEYS or "
            "PACELINE_SECRET_KEY_FILE."
        ) from error
    if not lines:
        raise SecretKeyError(f"{path} holds no key.")
    return lines


def _make(path: Path) -> None:
    """Write a new key, whole or not at all; of two processes at once, one makes it."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    scratch = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(scratch, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(Fernet.generate_key() + b"\n")
            file.flush()
            os.fsync(file.fileno())
        try:
            os.link(scratch, path)
        except FileExistsError:
            return
    finally:
        scratch.unlink()
