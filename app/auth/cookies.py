"""The cookies of a browser of a user who signs in."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from starlette.requests import HTTPConnection
    from starlette.responses import Response

    from app.settings import Settings

# Browsers take a cookie of this prefix over TLS alone, for this host alone and for all of its
# paths: a page of a neighboring host name can put none of its own in its place.
HOST_PREFIX: Final = "__Host-"


class BrowserCookie:
    """A cookie that scripts cannot read and other sites' forms do not send.

    Parameters
    ----------
    name : str
        Where people come over TLS, as the settings say, it has `HOST_PREFIX` before it.
    settings : Settings
    """

    def __init__(self, name: str, settings: Settings) -> None:
        self._secure = settings.served_over_tls
        self.name = f"{HOST_PREFIX}{name}" if self._secure else name

    def read(self, request: HTTPConnection) -> str | None:
        """Return what a browser shows."""
        return request.cookies.get(self.name)

    def give(self, response: Response, value: str, lasts: timedelta) -> None:
        """Let a browser keep a value."""
        response.set_cookie(
            self.name,
            value,
            max_age=int(lasts.total_seconds()),
            path="/",
            httponly=True,
            # Not strict: who follows a link from a chat, or comes back from a provider, is
            # signed in.
            samesite="lax",
            secure=self._secure,
        )

    def drop(self, response: Response) -> None:
        """Take it from a browser."""
        response.delete_cookie(
            self.name, path="/", httponly=True, samesite="lax", secure=self._secure
        )


def session_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a browser with a signed-in user."""
    return BrowserCookie("paceline_session", settings)


def known_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a browser with an earlier sign-in by a password."""
    return BrowserCookie("paceline_known", settings)


def pending_cookie(settings: Settings) -> BrowserCookie:
    """Return the cookie of a sign-in that is under way at a provider."""
    return BrowserCookie("paceline_sign_in", settings)
