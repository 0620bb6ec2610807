"""An incident at night: its begin, the commands to type, and the evidence for the hardware team."""

from __future__ import annotations

import io
import re
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from playwright.sync_api import expect

from tests.e2e.alerting import let_it_fire
from tests.e2e.expecting import WIDE_LIGHT, expect_well_made, in_every_look
from tests.e2e.looking import keep
from tests.e2e.visiting import NARROW

if TYPE_CHECKING:
    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Look, Visitor


@in_every_look
def test_since_when_is_in_the_first_screen(place: Place, visitor: Visitor, look: Look) -> None:
    session = let_it_fire(place)
    [incident] = place.alerting.incidents()
    said = re.compile(r"since \d\d:\d\d UTC, session 2, was 1\.0\d×")
    for path, words in (
        (f"incidents/{incident.id}", said),
        ("jobs/dense-34b", said),
        # On the page of the session, the begin is a fact labeled "Since".
        (f"sessions/{session}", re.compile(r"\d\d:\d\d UTC, was 1\.0\d×")),
    ):
        page = visitor.open(f"{place.url}/{path}", look)
        found = page.get_by_text(words).first
        expect(found).to_be_visible()
        box = found.bounding_box()
        assert box is not None
        if look.size != NARROW:
            assert box["y"] + box["height"] <= look.size[1], path


def test_a_remedy_is_copied(place: Place, visitor: Visitor) -> None:
    let_it_fire(place)
    [incident] = place.alerting.incidents()
    page = visitor.open(f"{place.url}/incidents/{incident.id}", WIDE_LIGHT)
    page.context.grant_permissions(["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy remedy").click()
    expect(page.get_by_role("button", name="Copied")).to_be_visible()
    assert incident.facts is not None
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("#remedy").inner_text()


@in_every_look
def test_the_evidence_is_printed_and_taken_along(
    place: Place, visitor: Visitor, look: Look
) -> None:
    let_it_fire(place)
    [incident] = place.alerting.incidents()
    page = visitor.open(f"{place.url}/incidents/{incident.id}", look)
    page.get_by_role("link", name="Evidence to print").click()
    expect(page.get_by_role("region", name="Commands")).to_contain_text("kubectl cordon")
    assert page.evaluate("document.querySelector('img.evidence').naturalWidth") > 0
    keep(page, f"evidence-{look.name}")
    expect_well_made(page, place.url, look)
    with page.expect_download() as downloading:
        page.get_by_role("link", name="Download all (zip)").click()
    taken = Path(downloading.value.path()).read_bytes()
    with zipfile.ZipFile(io.BytesIO(taken)) as archive:
        assert {"incident.txt", "incident.json", "workers.csv"} <= {
            name.rpartition("/")[2] for name in archive.namelist()
        }
    page.emulate_media(media="print")
    # In print there is no navigation, and the content is as wide as the sheet.
    expect(page.locator(".top")).to_be_hidden()
    expect(page.locator("h1")).to_be_visible()
