"""The first administrator's token, so that a new installation can be signed in to at once."""

from __future__ import annotations

import contextlib
import os
import time
from typing import TYPE_CHECKING, Final

import structlog
from sqlalchemy import select

from app.access.principals import Right
from app.access.tokens import digest, is_token, new_token
from app.db.models.access import Token
from app.errors import ConflictError, StartupError
from app.services.access.tokens import create_token

if TYPE_CHECKING:
    from pathlib import Path

    from app.services.container import Container

NAME: Final = "first-administrator"
OWNER: Final = "PACELINE_ADMIN_TOKEN_FILE"
# The owner's alone.
MODE: Final = 0o600
# An empty file that stays empty was left by a process that was killed.
WRITTEN_WITHIN_S: Final = 2.0

_log = structlog.get_logger(__name__)


def make_first_token(container: Container) -> None:
    """Create token in `admin_token_file` valid; where there is no such file, write a new one.

    Done again it changes nothing. A token that was revoked stays so: a new one in the file, under
    a name that is free again, is how a lost one is replaced.

    Raises
    ------
    StartupError
        If the file cannot be read or written, or holds no token.
    """
    path = container.settings.admin_token_file
    if path is None:
        return
    secret = _in_file(path)
    everywhere = container.everywhere()
    if _is_known(everywhere, secret):
        return
    try:
        create_token(
            everywhere, name=NAME, rights=[Right.ADMIN], project=None, owner=OWNER, secret=secret
        )
    except ConflictError as error:
        # Another process may have made it at this moment.
        if _is_known(everywhere, secret):
            return
        raise StartupError(
            f"{path} holds another token than the one that is valid: revoke that one first, with "
            f"`paceline token revoke {NAME}`."
        ) from error
    _log.info("first administrator's token", file=str(path))


def _is_known(everywhere: Container, secret: str) -> bool:
    with everywhere.reading() as tx:
        known = select(Token.id).where(Token.sha256 == digest(secret))
        return tx.session.execute(known).first() is not None


def _in_file(path: Path) -> str:
    try:
        if not path.exists():
            # Another process may write it at this moment.
            with contextlib.suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, MODE)
                with os.fdopen(descriptor, "w") as file:
                    file.write(f"{new_token()}\n")
        give_up_at = time.monotonic() + WRITTEN_WITHIN_S
        while not (secret := path.read_text().strip()) and time.monotonic() < give_up_at:
            time.sleep(0.01)
    except (OSError, UnicodeDecodeError) as error:
        raise StartupError(f"The token of PACELINE_ADMIN_TOKEN_FILE: {error}") from error
    if not is_token(secret):
        raise StartupError(
            f"{path} holds no token: plc_ and 43 characters of base64url. Delete it, and a new "
            "one is written."
        )
    return secret
