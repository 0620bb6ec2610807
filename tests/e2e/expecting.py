"""Checks of every page, in every window and color scheme."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.e2e.looking import barriers, check
from tests.e2e.visiting import LOOKS, NARROW, Look
from tests.support.nightly import every_night

if TYPE_CHECKING:
    from playwright.sync_api import Page


WIDE_LIGHT = LOOKS[0]
# By day in one window and scheme only: test_walk.py shows every page in all of them.
in_every_look = pytest.mark.parametrize(
    "look", [WIDE_LIGHT, *every_night(*LOOKS[1:])], ids=lambda look: look.name
)


def expect_well_made(page: Page, site: str, look: Look) -> None:
    """Check the properties that every page must have."""
    assert check(page, "overflow") <= 0
    assert check(page, "lowContrast") == []
    assert check(page, "unnamed") == []
    assert check(page, "origins") == [site]
    assert barriers(page) == []
    assert page.title().endswith(" · Paceline")
    assert page.locator("h1").count() == 1
    if look.size == NARROW:
        assert check(page, "smallTargets") == []
