"""Visits of a browser to a server, and a whole installation to visit."""

from __future__ import annotations

import os
import subprocess
import sys
import uuid
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

import httpx

from app.errors import StartupError
from app.run.http import listen
from tests.support.nightly import every_night
from tests.support.processes import descendants, wait_until_gone
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    import socket
    from collections.abc import Iterable

    from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, Request

    from app.platform.settings import Settings

REPOSITORY = Path(__file__).parents[2]

# These disable the browser's own requests to its vendor.
BROWSER_ARGUMENTS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
)

WIDE = (1440, 900)
NARROW = (390, 844)


@dataclass(frozen=True, slots=True)
class Look:
    """A size of the window, and a color scheme."""

    name: str
    size: tuple[int, int]
    scheme: str
    zone: str = "UTC"  # time zone of the reader


# By day each size and each scheme once; every night all combinations.
LOOKS: tuple[Look, ...] = (
    Look("wide-light", WIDE, "light"),
    Look("narrow-dark", NARROW, "dark"),
    *every_night(Look("wide-dark", WIDE, "dark"), Look("narrow-light", NARROW, "light")),
)


class Windows:
    """Profiles of a browser, one for each look, emptied after a test and used by the next one.

    A renderer that has run the pages' scripts once shows the next page in a third of the processor
    time. Every profile therefore keeps a tab on a server's ``/healthz``, without scripts. This tab
    opens the tabs of tests, which thus share its renderer.
    """

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._keepers: dict[Look, Page] = {}

    def open(self, look: Look, origin: str) -> Page:
        """Return a new tab of the look's profile."""
        keeper = self._keepers.get(look)
        if keeper is None:
            keeper = self._keepers[look] = self.profile(look).new_page()
        if _origin(keeper.url) != origin:
            keeper.goto(f"{origin}/healthz")
        with keeper.context.expect_page() as opened:
            keeper.evaluate("() => { open('about:blank'); }")
        return opened.value

    def profile(self, look: Look) -> BrowserContext:
        """Return an empty profile that no other test uses."""
        width, height = look.size
        return self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if look.scheme == "dark" else "light",
            has_touch=look.size == NARROW,
            is_mobile=look.size == NARROW,
            timezone_id=look.zone,
        )

    def empty(self, origins: Iterable[str]) -> None:
        """Close all tabs, delete the data of their pages, and close additional profiles."""
        keepers = {keeper.context: keeper for keeper in self._keepers.values()}
        for context in self._browser.contexts:
            keeper = keepers.get(context)
            if keeper is None:
                context.close()
                continue
            for page in context.pages:
                if page is not keeper:
                    page.close()
            context.clear_cookies()
            context.clear_permissions()
            session = context.new_cdp_session(keeper)
            for origin in origins:
                session.send(
                    "Storage.clearDataForOrigin",
                    {"origin": origin, "storageTypes": "local_storage,indexeddb,service_workers"},
                )
            session.detach()


class Visitor:
    """Opens pages, and records errors that no page may have."""

    def __init__(self, windows: Windows) -> None:
        self._windows = windows
        self._origins: set[str] = set()
        self._expected: set[str] = set()
        self.complaints: list[str] = []
        self.requested: set[str] = set()

    def open(self, url: str, look: Look = LOOKS[0], *, alone: bool = False) -> Page:
        """Open an address in a new tab of the test's profile, or `alone` in a separate profile."""
        origin = _origin(url)
        self._origins.add(origin)
        windows = self._windows
        page = windows.profile(look).new_page() if alone else windows.open(look, origin)
        page.set_default_timeout(LIMIT_S * 1000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("request", self._request)
        page.goto(url)
        return page

    def expects(self, *answers: str) -> None:
        """Allow errors that the browser reports by itself: ``"404"``, ``"ERR_FAILED"``.

        The browser reports the status of an answer some time after the page has got it.
        """
        self._expected.update(answers)
        self.complaints[:] = [said for said in self.complaints if not self._is_expected(said)]

    def _is_expected(self, said: str) -> bool:
        return any(answer in said for answer in self._expected)

    def close(self) -> None:
        """Close every tab and delete all data of the pages."""
        self._windows.empty(self._origins)

    def _console(self, message: ConsoleMessage) -> None:
        # Violations of the content security policy are errors on the console.
        if message.type in ("error", "warning") and not self._is_expected(message.text):
            self.complaints.append(f"{message.type} on the console: {message.text}")

    def _request(self, request: Request) -> None:
        self.requested.add(request.url)
        if request.url.startswith(("data:", "blob:")):
            return
        if _origin(request.url) not in self._origins:
            self.complaints.append(f"request to another host: {request.url}")


# Ports of this process's servers, used one after the other: the browser keeps compiled scripts by
# address.
_ports: list[int] = []


def listen_again(settings: Settings) -> socket.socket:
    """Return a socket at the port of this process's last server, or at any free port."""
    try:
        listener = listen(settings.model_copy(update={"port": _ports[-1] if _ports else 0}))
    except StartupError:
        # The last server still listens, or another program has taken its port.
        listener = listen(settings.model_copy(update={"port": 0}))
    _ports.append(listener.getsockname()[1])
    return listener


class Installation:
    """`paceline serve` with an embedded database and workers, in a separate process."""

    def __init__(self, directory: Path) -> None:
        self._words = directory / "words"
        self._name = str(uuid.uuid4())
        with self._words.open("ab") as words:
            self._process = subprocess.Popen(  # noqa: S603 - the test's own
                [
                    *(sys.executable, "-m", "app.cli.main", "serve", "--port", "0"),
                    *("--data-dir", str(directory / "data")),
                ],
                cwd=REPOSITORY,
                env=os.environ
                | {"PACELINE_LOG_LEVEL": "info", "PACELINE_INSTANCE_NAME": self._name},
                stdin=subprocess.DEVNULL,
                stdout=words,
                stderr=words,
            )
        self.url = ""

    def __enter__(self) -> Self:
        try:
            self.url = wait_for(self._announced, "announcement").rstrip("/")
            # Another process may have taken the port meanwhile.
            assert httpx.get(f"{self.url}/healthz").json()["instance"] == self._name
            wait_for(lambda: httpx.get(f"{self.url}/readyz").status_code == 200, "readiness")
        except BaseException:
            self._stop()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _announced(self) -> str:
        words = self._words.read_text()
        assert self._process.poll() is None, words
        lines = [line for line in words.splitlines() if "is ready: " in line]
        return lines[-1].rpartition(" ")[2] if lines else ""

    def _stop(self) -> None:
        running = descendants(self._process.pid)
        self._process.terminate()
        try:
            self._process.wait(LIMIT_S)
        finally:
            self._process.kill()
            wait_until_gone(running)


def _origin(url: str) -> str:
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc}"
