"""Tokens: 256 random bits after a prefix that scanners for secrets can look for."""

from __future__ import annotations

import base64
import binascii
import hashlib
import secrets
from typing import Final

PREFIX: Final = "plc_"
RANDOM_BYTES: Final = 32
# What lists show of a token; with 24 random bits shown, 232 stay unknown.
SHOWN_CHARACTERS: Final = len(PREFIX) + 4


def new_token() -> str:
    """Return a new token."""
    return PREFIX + secrets.token_urlsafe(RANDOM_BYTES)


def is_token(text: str) -> bool:
    """Return whether a text has the form of a token, with all of its bits."""
    if not text.startswith(PREFIX) or not text.isascii():
        return False
    try:
        found = base64.b64decode(text[len(PREFIX) :] + "=", altchars=b"-_", validate=True)
    except binascii.Error:
        return False
    return len(found) == RANDOM_BYTES


def digest(secret: str) -> bytes:
    """Return what is stored of a secret of full entropy: SHA-256, 32 bytes.

    A slow hash would add nothing: there are 2^256 tokens to try.
    """
    return hashlib.sha256(secret.encode()).digest()
