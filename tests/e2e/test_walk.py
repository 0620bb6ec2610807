"""A walk over every page of the dashboard, on one server: complete, readable, without errors.

The other tests of this folder check the content and the behavior of pages.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Final

from fastapi.routing import iter_route_contexts

from app.incidents.store import load_rules
from app.run.application import create_app
from tests.e2e.alerting import let_it_fire
from tests.e2e.expecting import expect_well_made
from tests.e2e.looking import check, keep, wait_for_plots
from tests.e2e.visiting import LOOKS
from tests.support.hanging import Hanging, archived, pickled
from tests.support.plans import ask, do, small_spec
from tests.support.reads import read
from tests.support.served import client_of
from tests.support.tensor import SLOW, TrainingJob

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tests.e2e.alerting import Place
    from tests.e2e.visiting import Visitor
    from tests.support.receiver import Receiver

# Routes that are no pages of their own: files, links of saved views, the index of the client's
# wheel, parts of a live page, and the documentation, which `test_documentation.py` tests.
NO_PAGES = (
    *("/live", ".csv", ".zip", "/{name}", "/{address:path}"),
    *("/docs", "/views/{view}", "/client", "/client/"),
)

# Modules whose routes are pages.
PAGES: Final = re.compile(r"app\.\w+\.(pages|sign_in_pages|documentation)\b")

HANGING = Hanging(4, [[(0, 1), (2, 3)], [(0, 2), (1, 3)]] * 2, host_stops={3: 2})


def test_every_page_in_the_light_and_in_the_dark(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    pages = filled(place, receiver)
    assert set(pages) == routes(place)
    faults = []
    for look in LOOKS:
        for route, address in pages.items():
            page = visitor.open(f"{place.url}{address}", look)
            wait_for_plots(page)
            keep(page, f"walk{route.replace('/', '-')}-{look.name}")
            try:
                expect_well_made(page, place.url, look)
            except AssertionError as fault:
                faults.append(f"{route}, {look.name}: {fault!r}")
            page.close()
    assert faults == []


def test_a_long_name_of_a_job_widens_no_page(
    place: Place, receiver: Receiver, visitor: Visitor
) -> None:
    name = "pretraining-" + "x" * 188
    assert len(name) == 200
    faults = []
    for route, address in filled(place, receiver, name).items():
        page = visitor.open(f"{place.url}{address}", LOOKS[1])
        wait_for_plots(page)
        keep(page, f"long{route.replace('/', '-')}")
        if (wider := check(page, "overflow")) > 0:
            faults.append(f"{route} is {wider} pixels wider than its window")
        page.close()
    assert faults == []


def filled(place: Place, receiver: Receiver, job: str = "dense-34b") -> Mapping[str, str]:
    """Return an address for each route of a page, with data on all of them."""
    alerting = place.alerting
    channel = alerting.channel(receiver, "ops-bus")
    session = let_it_fire(place, job)
    [incident] = alerting.incidents()
    plan = ask(alerting.container, small_spec())
    assert do(alerting.container, plan)
    with client_of(place.url) as client:
        TrainingJob(client, job).report(*SLOW, steps=2)
        dumps = {f"_dump_{rank}": pickled(dump) for rank, dump in HANGING.dumps().items()}
        hang = client.post("/api/v1/jobs/stuck/hangs", content=archived(dumps)).json()["hang"]
    rule = read(alerting.container, load_rules)[0]
    return {
        "/": "/",
        "/jobs/{job}": f"/jobs/{job}",
        "/sessions/{session}": f"/sessions/{session}",
        "/hangs/{hang}": f"/hangs/{hang}",
        "/compare": f"/compare?job={job}",
        "/compare/times": f"/compare/times?job={job}",
        "/hosts": "/hosts?show=all",
        "/hosts/{host}": "/hosts/node-18",
        "/plans": "/plans",
        "/plans/{plan}": f"/plans/{plan.plan}",
        "/jobs/{job}/tensor": f"/jobs/{job}/tensor",
        "/jobs/{job}/tensor/{group}": f"/jobs/{job}/tensor/0-0",
        "/incidents": "/incidents",
        "/incidents/{incident}": f"/incidents/{incident.id}",
        "/incidents/{incident}/evidence": f"/incidents/{incident.id}/evidence",
        "/channels": "/channels",
        "/channels/new": "/channels/new",
        "/channels/{channel}": f"/channels/{channel}",
        "/actions": "/actions",
        "/rules": "/rules",
        "/rules/{rule}": f"/rules/{rule.id}",
        "/report": "/report",
        "/ingest": "/ingest",
        "/installation": "/installation",
        "/retention": "/retention",
        "/quotas": "/quotas",
        "/access": "/access",
        "/access/incidents": "/access/incidents",
        "/incidents/everywhere": "/incidents/everywhere",
        "/access/audit": "/access/audit",
        "/sign-in": "/sign-in",
    }


def routes(place: Place) -> set[str]:
    """Return the application's routes of pages."""
    contexts = iter_route_contexts(create_app(place.alerting.container).routes)
    return {
        path
        for context in contexts
        if "GET" in (context.methods or ())
        and PAGES.match(context.endpoint.__module__ or "")
        and not (path := context.path or "").endswith(NO_PAGES)
    }
