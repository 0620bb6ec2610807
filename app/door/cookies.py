"""The cookies of a browser that somebody signs in with."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.responses import Response

    from app.settings import Settings

SESSION_COOKIE: Final = "paceline_session"
PENDING_COOKIE: Final = "paceline_sign_in"


def set_cookie(
    response: Response, settings: Settings, name: str, value: str, lasts: timedelta
) -> None:
    """Give a browser a cookie that scripts cannot read and other sites' forms do not send."""
    response.set_cookie(
        name,
        value,
        max_age=int(lasts.total_seconds()),
        httponly=True,
        # Not strict: who follows a link from a chat, or comes back from a provider, is signed in.
        samesite="lax",
        secure=(settings.external_url or "").startswith("https:"),
    )


def drop_cookie(response: Response, name: str) -> None:
    """Take a cookie from a browser."""
    response.delete_cookie(name, httponly=True, samesite="lax")
