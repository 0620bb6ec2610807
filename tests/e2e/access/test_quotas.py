"""The page of quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from playwright.sync_api import expect

from app.quotas.usage import QUOTAS
from tests.e2e.expecting import expect_well_made
from tests.e2e.looking import keep
from tests.e2e.visiting import LOOKS, Look

if TYPE_CHECKING:
    from tests.e2e.visiting import Visitor


@pytest.mark.parametrize("look", LOOKS, ids=lambda look: look.name)
def test_the_page_of_quotas(site: str, visitor: Visitor, look: Look) -> None:
    page = visitor.open(f"{site}/quotas", look)
    expect(page.locator("h1")).to_have_text("The project is within its quotas")
    expect(page.locator("tbody tr")).to_have_count(len(QUOTAS))
    keep(page, f"quotas-{look.name}")
    expect_well_made(page, site, look)
