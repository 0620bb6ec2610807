"""Encryption of channel secrets at rest.

Fernet (AES-128-CBC with HMAC-SHA256) of the library `cryptography`, with several keys: the first
encrypts, all decrypt. To change the key, put the new one first, run ``paceline alerts reseal``, and
remove the old one.
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
    """Return the encrypted secrets; create the key file if no key exists.

    Raises
    ------
    SecretKeyError
        If a key cannot be read or written.
    """
    return _box(settings, create=True).encrypt(json.dumps(secrets).encode())


def unseal(settings: Settings, sealed: bytes) -> dict[str, Any]:
    """Return the decrypted secrets.

    Raises
    ------
    SecretKeyError
        If there is no key, or no key decrypts the secrets.
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
    """Return the names of the secrets that are set, with the host of each address, for users."""
    return {
        name: urlsplit(value).hostname
        if isinstance(value, str) and value.startswith(("http://", "https://"))
        else None
        for name, value in secrets.items()
    }


def check_secrets(container: Container) -> int:
    """Store for each channel whether the keys decrypt its secrets, and the hints about them.

    The sweeper calls it, because it has the keys of the delivering workers; so pages need no keys.

    Returns
    -------
    int
        Number of channels that changed.
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
            current = {"readable": True, "secret_hints": hints(unseal(container.settings, sealed))}
        except SecretKeyError:
            current = {"readable": False, "secret_hints": stored}
        if current == {"readable": readable, "secret_hints": stored}:
            continue
        with container.uow() as tx:
            # Skip a channel whose secrets were replaced meanwhile.
            tx.session.execute(
                update(AlertChannel)
                .where(AlertChannel.id == id_, AlertChannel.secrets == sealed)
                .values(current)
            )
        changed += 1
    return changed


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
        # Only the default file is created: a file at a configured path is the operator's task.
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
    """Write a new key atomically; of two concurrent processes only one writes its key."""
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
