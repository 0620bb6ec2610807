"""A browser and two kinds of server: a whole installation, and one whose states tests change."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect, sync_playwright

from app.run.http import address_of
from tests.conftest import skip_or_fail
from tests.e2e.alerting import Place
from tests.e2e.visiting import BROWSER_ARGUMENTS, Installation, Visitor, Windows, listen_again
from tests.support.alerting import LOOPBACK, Alerting
from tests.support.project import build
from tests.support.receiver import Receiver
from tests.support.served import served
from tests.support.waiting import LIMIT_S

if TYPE_CHECKING:
    from collections.abc import Iterator

    from playwright.sync_api import Browser

    from app.platform.container import Container
    from app.platform.settings import Settings


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """Yield the system's Chromium.

    Its headless shell, if installed, shows the same pages in three quarters of the processor time.
    """
    program = shutil.which("chromium-headless-shell") or shutil.which("chromium")
    if program is None:
        skip_or_fail("there is neither chromium-headless-shell nor chromium on PATH")
        return
    # A limit for hangs: the machine may be busy with other tests.
    expect.set_options(timeout=LIMIT_S * 1000)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=list(BROWSER_ARGUMENTS))
        yield browser
        browser.close()


@pytest.fixture(scope="session")
def windows(browser: Browser) -> Windows:
    """Return the profiles of the browser, which tests use one after the other."""
    return Windows(browser)


@pytest.fixture
def visitor(windows: Windows) -> Iterator[Visitor]:
    """Yield a visitor of pages; fails the test on errors, violations and foreign requests."""
    visitor = Visitor(windows)
    yield visitor
    visitor.close()
    assert visitor.complaints == []


@pytest.fixture(scope="module")
def installation(browser: Browser) -> Iterator[str]:
    """Yield the address of a whole, empty installation."""
    del browser  # Without one nothing needs to be started.
    # PostgreSQL runs as another account than root, which may not enter pytest's directories.
    with tempfile.TemporaryDirectory(prefix="paceline-e2e-") as directory:
        Path(directory).chmod(0o755)
        with Installation(Path(directory)) as running:
            yield running.url


@pytest.fixture
def site(browser: Browser, container: Container) -> Iterator[str]:
    """Yield the address of a server without workers, whose sessions change with the test only."""
    del browser
    with served(container, listen_again(container.settings)) as address:
        yield address


@pytest.fixture
def place(browser: Browser, settings: Settings) -> Iterator[Place]:
    """Yield a server that may send to this machine, without workers, with shortcuts to alerts."""
    del browser
    listener = listen_again(settings)
    url = address_of(listener).rstrip("/")
    container = build(
        settings.model_copy(
            update={
                "external_url": url,
                "alert_allowed_networks": LOOPBACK,
                "alert_attempt_limit_s": 5.0,
            }
        )
    )
    with served(container, listener):
        yield Place(url, Alerting(container))
    container.close()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    """Yield a receiver of alerts."""
    with Receiver() as running:
        yield running
