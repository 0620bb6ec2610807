from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

from fastapi.routing import APIRoute

from app.incidents.everywhere import navigation
from app.run import page_routes as routes
from app.sessions.recordings.listing import UPLOADED_BYTES
from app.web.assets import installed_assets
from app.web.pages import Pages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from fastapi.dependencies.models import Dependant


def _within(dependant: Dependant) -> Iterator[Any]:
    for one in dependant.dependencies:
        yield one.call
        yield from _within(one)


def test_what_an_address_asks_for_takes_pages_to_no_other_thread() -> None:
    assets = installed_assets()
    router = routes.router(assets, Pages(assets, navigation, UPLOADED_BYTES))
    calls = {
        call
        for route in router.routes
        if isinstance(route, APIRoute)
        for call in _within(route.dependant)
    }
    assert len(calls) > 4
    assert [call for call in calls if not inspect.iscoroutinefunction(call)] == []
