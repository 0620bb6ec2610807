"""The dialog that confirms the deletion of an object."""

from __future__ import annotations

from typing import TYPE_CHECKING

from playwright.sync_api import expect

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page


def destroy(page: Page, button: Locator, verb: str, *, typed: str = "") -> None:
    """Press a button, and confirm in its dialog."""
    button.click()
    dialog = page.get_by_role("dialog")
    if typed:
        expect(dialog.get_by_role("button", name=verb, exact=True)).to_be_disabled()
        dialog.get_by_role("textbox").fill(typed)
    # The dialog's button is enabled after a moment.
    dialog.get_by_role("button", name=verb, exact=True).click()
    expect(dialog).to_have_count(0)
