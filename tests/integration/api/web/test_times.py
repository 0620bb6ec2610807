"""Times in queries: whatever time a query names, no route fails."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Final, get_args

import pytest
from fastapi.routing import APIRoute, iter_route_contexts

from app.run.application import create_app
from app.web.time_ranges import moment_in

if TYPE_CHECKING:
    from collections.abc import Iterator

    from app.platform.container import Container
    from tests.integration.api.conftest import Installation

# Times at both ends of what Python, pydantic and PostgreSQL can hold, and numbers read as times.
EXTREMES: Final = (
    "0001-01-01T00:00:00+23:59",
    "0001-01-01T00:00:00Z",
    "9999-12-31T23:59:59.999999-23:59",
    "9999-12-31T23:59:59Z",
    "-62135596800",
    "253402300799",
    "1e308",
    "2026-11-29T00:00:00+24:00",
)
# Parameters of pages hold a time as text, so that a page ignores a time that is none.
OF_PAGES: Final = {"from", "to", "a_from", "a_to", "b_from", "b_to"}


def time_parameters(container: Container) -> Iterator[tuple[str, str, str]]:
    """Yield method, path and parameter of every time in a query of every route."""
    for context in iter_route_contexts(create_app(container).routes):
        route = context.original_route
        if not isinstance(route, APIRoute):
            continue
        parameters = [*route.dependant.query_params]
        for dependant in route.dependant.dependencies:
            parameters += dependant.query_params
        for parameter in parameters:
            if parameter.alias in OF_PAGES or _holds_time(parameter.field_info.annotation):
                for method in (context.methods or set()) - {"HEAD"}:
                    yield method, context.path or "", parameter.alias


def _holds_time(annotation: object) -> bool:
    return annotation is datetime or any(map(_holds_time, get_args(annotation)))


@pytest.mark.slow
def test_no_time_in_a_query_is_a_fault_of_the_server(installation: Installation) -> None:
    session = installation.post().json()["session"]
    installation.analyze_all()
    host = installation.client.get("/api/v1/hosts").json()["hosts"]
    named = {"job": "job", "session": session, "host": host[0]["host"] if host else "node"}
    failed = {}
    walked = set()
    for method, path, parameter in set(time_parameters(installation.container)):
        names = [part[1:-1] for part in path.split("/") if part.startswith("{")]
        things = {name: named.get(name, "1") for name in names} | {"name": "sessions"}
        query = {"job": "job"} if path.startswith("/compare/times") else {}
        for value in EXTREMES:
            answer = installation.client.request(
                method, path.format_map(things), params=query | {parameter: value}
            )
            walked.add((path, answer.status_code))
            if answer.status_code >= 500:
                failed[method, path, parameter, value] = answer.text[:200]
    assert failed == {}
    # Pages ignore such a time, and the API refuses it.
    assert {("/", 200), ("/api/v1/ingest", 422), ("/api/v1/jobs/{job}/history", 422)} <= walked


@pytest.mark.parametrize("text", EXTREMES)
def test_a_page_ignores_a_time_of_no_year_of_ours(text: str) -> None:
    assert moment_in(text) is None
