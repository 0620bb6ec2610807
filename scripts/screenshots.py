"""Photograph the demo for the documentation: ``python scripts/screenshots.py``.

Starts `paceline demo` with its own database, waits for its history, and photographs pages with
the chromium on PATH.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import httpx
from playwright.sync_api import sync_playwright

if TYPE_CHECKING:
    from playwright.sync_api import Page

ROOT: Final = Path(__file__).parents[1]
IMAGES: Final = ROOT / "docs" / "images"
WINDOW: Final = (1440, 900)
LIMIT_S: Final = 600
LOOK_S: Final = 1.0
# Scenario of the sessions that the page about verdicts explains.
EXPLAINED: Final = "dense-180b"


@dataclass(frozen=True, slots=True)
class Picture:
    """A picture: file, address of the page, and selector of a part (default: the window)."""

    name: str
    address: str
    part: str = ""


def pictures(session: str) -> list[Picture]:
    """Return the pictures to take; `session` is the latest of `EXPLAINED`."""
    page = f"/sessions/{session}"
    return [
        Picture("fleet", "/"),
        Picture("job", f"/jobs/{EXPLAINED}"),
        Picture("incidents", "/incidents"),
        Picture("session", page),
        Picture("heatmap", page, ".fig.o1"),
        Picture("steps", page, ".fig.o4"),
        Picture("fixes", page, ".fig.o3"),
        Picture("timeline", page, "section[aria-label=Timeline]"),
        Picture("causes", page, "section[aria-label=Causes]"),
        Picture("what-if", f"{page}?ask=peers_worker.4.3", "#what-if"),
    ]


def photograph(url: str, session: str) -> None:
    """Write every picture of a server's pages."""
    program = shutil.which("chromium")
    if program is None:
        raise SystemExit("There is no chromium on PATH.")
    width, height = WINDOW
    IMAGES.mkdir(exist_ok=True)
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, args=["--no-sandbox"])
        page = browser.new_page(
            viewport={"width": width, "height": height},
            color_scheme="light",
            reduced_motion="reduce",
        )
        shown = ""
        for picture in pictures(session):
            if picture.address != shown:
                _show(page, url + picture.address)
                shown = picture.address
            path = IMAGES / f"{picture.name}.png"
            if picture.part:
                page.locator(picture.part).first.screenshot(path=path)
            else:
                page.screenshot(path=path)
            print(f"{path.relative_to(ROOT)}: {path.stat().st_size / 1024:.0f} KiB")
        browser.close()


def _show(page: Page, address: str) -> None:
    page.goto(address)
    page.locator("#live").get_by_text("Live", exact=True).wait_for()
    for figure in page.locator("[data-figure], #heatmap, #strip, #timeline").all():
        # Some figures are drawn once they are visible.
        figure.scroll_into_view_if_needed()
        figure.and_(page.locator("[data-drawn]")).wait_for()
    # If the address contains a question, the picture needs its answer.
    page.locator("#answer[aria-busy=true]").wait_for(state="detached")
    page.evaluate("scrollTo(0, 0)")


def wait_for_address(words: Path) -> str:
    """Wait until the demo's history is complete; return the address of its server."""
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        for line in words.read_text().splitlines():
            if line.startswith("All analyzed "):
                return line.split()[-1].rstrip("/")
        time.sleep(LOOK_S)
    raise SystemExit(f"The demo's history is not there whole after {LIMIT_S} s.")


def explained(url: str) -> str:
    """Return the latest session of `EXPLAINED`."""
    answer = httpx.get(f"{url}/api/v1/sessions", params={"job": EXPLAINED}, timeout=30)
    rows = answer.raise_for_status().json()["sessions"]
    return str(max(rows, key=lambda row: row["session"])["id"])


def main() -> None:
    """Start the demo, photograph it, and stop it."""
    # As root, the database runs as another account, which may not enter every directory.
    with tempfile.TemporaryDirectory(prefix="paceline-pictures-", dir="/tmp") as directory:
        Path(directory).chmod(0o755)
        words = Path(directory) / "words"
        command = [sys.executable, "-m", "app.cli.main", "demo", "--port", "0"]
        with words.open("w") as output:
            process = subprocess.Popen(  # noqa: S603 - our own arguments
                [*command, "--data-dir", f"{directory}/data"], cwd=ROOT, stderr=output
            )
        try:
            url = wait_for_address(words)
            photograph(url, explained(url))
        finally:
            process.terminate()
            process.wait()


if __name__ == "__main__":
    main()
