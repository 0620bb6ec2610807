"""Routes of the pages and CSV files of hosts."""

from __future__ import annotations

from typing import Annotated, Final

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from app.access.guard import RequestContainer
from app.analysis.replay.metrics import STRAGGLING
from app.errors import NotFoundError
from app.hosts.costs import PAGE, Hosts, HostSums, Show, Span
from app.hosts.detail import host_view, unrecorded
from app.hosts.listed import HEADER, hosts_file, list_hosts
from app.hosts.pages.host import host_page, probe_part
from app.hosts.pages.list import EXPORTS, FILES, host_live, hosts_page
from app.hosts.probes import ProbeRow, latest_probe, probes_of
from app.platform.database.unit_of_work import Reads
from app.pulse.advance import host_now
from app.web.addresses import server_address
from app.web.links import Address, host_url, page_number
from app.web.lists import PageRequest
from app.web.pages import Pages
from app.web.tables import Table, Written, csv_file, one_of
from app.web.time_ranges import MONTH, Range, TimeQueryParam

# Largest length of a search text; a longer text matches no host.
MAX_WORDS: Final = 200

Text = Annotated[str, Query()]


def add_host_pages(routes: APIRouter, pages: Pages) -> None:
    """Add the pages of hosts to the dashboard."""

    @routes.get("/hosts")
    def hosts_route(  # noqa: PLR0913 - what an address may ask for
        container: RequestContainer,
        time: TimeQueryParam,
        *,
        q: Text = "",
        show: Text = "",
        sort: Text = "",
        page: Text = "",
    ) -> Response:
        about, words = time.about(MONTH), q[:MAX_WORDS].strip()
        with pages.reading(container) as (tx, nav):
            hosts = _list(tx, about, words, PageRequest(sort, page_number(page), PAGE), show)
        request = {**time.parameters, "q": words, "show": show, "sort": sort, "page": page}
        shown = hosts_page(hosts, about, _show(show), words, Address("/hosts", request))
        return pages.render("hosts/list.html", nav, page=shown, now=hosts.now)

    @routes.get("/hosts.csv")
    def hosts_file_route(
        container: RequestContainer,
        time: TimeQueryParam,
        q: Text = "",
        show: Text = "",
        sort: Text = "",
    ) -> Response:
        with container.reading() as tx:
            span, words = _span(tx, time.about(MONTH)), q[:MAX_WORDS].strip()
            lines = hosts_file(tx, span, sort, show=_show(show), words=words)
        return csv_file("paceline-hosts.csv", Written(HEADER, lines))

    @routes.get("/hosts-not-blamed.csv")
    def alike_file_route(container: RequestContainer, time: TimeQueryParam) -> Response:
        with container.reading() as tx:
            hosts = _list(tx, time.about(MONTH), "", PageRequest(size=PAGE), "")
        return csv_file("paceline-hosts-not-blamed.csv", Table.of(HostSums, hosts.look_alikes))

    @routes.get("/hosts/{host}")
    def host_route(
        request: Request, container: RequestContainer, host: str, time: TimeQueryParam
    ) -> Response:
        about = time.about(MONTH)
        with pages.reading(container) as (tx, nav):
            running, probe = host_now(tx, host), latest_probe(tx, host)
            try:
                view = host_view(tx, host, _span(tx, about))
            except NotFoundError:
                if not running.ranks and not running.notices and probe is None:
                    return pages.not_found(f"host {host}", nav)
                view = unrecorded(tx.now, host)
        shown = host_page(view, about, Address(host_url(host), time.parameters))
        return pages.render(
            "hosts/page.html",
            nav,
            page=shown,
            live=host_live(running, host_url(host), view.now),
            probe=probe_part(probe, view.repairs, host_url(host)),
            server=server_address(request, container.settings),
            now=view.now,
        )

    @routes.get("/hosts/{host}/{name}.csv")
    def host_file_route(
        container: RequestContainer, host: str, name: str, time: TimeQueryParam
    ) -> Response:
        if name == "probes":
            with container.reading() as tx:
                return csv_file(
                    f"paceline-host-{name}.csv", Table.of(ProbeRow, probes_of(tx, host))
                )
        if name in FILES:
            with container.reading() as tx:
                running = host_now(tx, host)
            return csv_file(f"paceline-host-{name}.csv", FILES[name](running))
        make = one_of(EXPORTS, name)
        with container.reading() as tx:
            view = host_view(tx, host, _span(tx, time.about(MONTH)))
        return csv_file(f"paceline-host-{name}.csv", make(view))


def _list(tx: Reads, about: Range, words: str, request: PageRequest, show: str) -> Hosts:
    return list_hosts(
        tx,
        _span(tx, about),
        request,
        show=_show(show),
        words=words,
        alike_from=STRAGGLING,
    )


def _span(tx: Reads, about: Range) -> Span:
    return Span(about.since(tx.now), about.end)


def _show(request: str) -> Show:
    return Show(request) if request in tuple(Show) else Show.BLAMED
