"""A browser's visits to a server, and a whole installation to visit."""

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

from tests.support.nightly import every_night
from tests.support.processes import descendants, wait_until_gone
from tests.support.waiting import LIMIT_S, wait_for

if TYPE_CHECKING:
    from playwright.sync_api import Browser, ConsoleMessage, Page, Request

REPOSITORY = Path(__file__).parents[2]

# Without these the browser calls home.
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
    """A window and a color scheme."""

    name: str
    size: tuple[int, int]
    scheme: str


# Each window and each scheme once; every night all of their combinations.
LOOKS: tuple[Look, ...] = (
    Look("wide-light", WIDE, "light"),
    Look("narrow-dark", NARROW, "dark"),
    *every_night(Look("wide-dark", WIDE, "dark"), Look("narrow-light", NARROW, "light")),
)


class Visitor:
    """Opens pages and remembers what must not happen on any of them."""

    def __init__(self, browser: Browser) -> None:
        self._browser = browser
        self._origins: set[str] = set()
        self._expected: set[str] = set()
        self.complaints: list[str] = []
        self.requested: set[str] = set()

    def open(self, url: str, look: Look = LOOKS[0]) -> Page:
        """Open an address in a new window with an empty profile."""
        self._origins.add(_origin(url))
        width, height = look.size
        context = self._browser.new_context(
            viewport={"width": width, "height": height},
            color_scheme="dark" if look.scheme == "dark" else "light",
            has_touch=look.size == NARROW,
            is_mobile=look.size == NARROW,
        )
        page = context.new_page()
        page.set_default_timeout(LIMIT_S * 1000)
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.complaints.append(f"script error: {error}"))
        page.on("request", self._request)
        page.goto(url)
        return page

    def expects(self, *answers: str) -> None:
        """Let the browser report these of its own accord: ``"404"``, ``"ERR_FAILED"``.

        It says what a request was answered some time after the page has the answer.
        """
        self._expected.update(answers)
        self.complaints[:] = [said for said in self.complaints if not self._is_expected(said)]

    def _is_expected(self, said: str) -> bool:
        return any(answer in said for answer in self._expected)

    def close(self) -> None:
        """Close every window."""
        for context in list(self._browser.contexts):
            context.close()

    def _console(self, message: ConsoleMessage) -> None:
        # Violations of the content security policy come out here as errors.
        if message.type in ("error", "warning") and not self._is_expected(message.text):
            self.complaints.append(f"{message.type} on the console: {message.text}")

    def _request(self, request: Request) -> None:
        self.requested.add(request.url)
        if request.url.startswith(("data:", "blob:")):
            return
        if _origin(request.url) not in self._origins:
            self.complaints.append(f"request to another host: {request.url}")


class Installation:
    """`paceline serve` with its own database and workers, in a process of its own."""

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
            # Another process may answer at a port that this one had.
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
