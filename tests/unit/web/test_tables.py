"""Tables on pages: cells, headings that link to orders, and links to neighboring pages."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import pytest

from app.web import html
from app.web.links import Address
from app.web.lists import Column, Listing, Page
from app.web.tables import Shown, drawn, pager, sorted_by


@dataclass(frozen=True, slots=True)
class Row:
    host: Annotated[str, Column(sort="host")]
    cost: Annotated[float, Column(sort="-cost")]


LIST = Listing(Row, default_sort="-cost")
SHOWN: tuple[Shown[Row], ...] = (
    Shown("Host", lambda row: html.link(f"/hosts/{row.host}", row.host), "host"),
    Shown("Cost", lambda row: row.cost, "cost", "num", "Hours", "muted", lambda _: "all"),
    Shown("Note", lambda _: "<b>"),
)
ROW = Row("a<b", 2.0)


def test_a_row_has_a_cell_for_each_column() -> None:
    table = drawn(SHOWN, [ROW], csv="/hosts.csv", attributes=lambda row: {"data-host": row.host})
    [line] = table.lines
    host, cost, note = line.cells
    assert host.content == '<a href="/hosts/a&lt;b">a&lt;b</a>'
    assert (cost.content, cost.classes, cost.title) == (2.0, "num muted", "all")
    assert (note.content, note.classes, line.attributes) == ("<b>", "", {"data-host": "a<b"})
    assert line.drawn == (
        '<tr data-host="a&lt;b"><td><a href="/hosts/a&lt;b">a&lt;b</a></td>'
        '<td class="num muted" title="all">2.0</td><td>&lt;b&gt;</td></tr>'
    )
    assert [(one.label, one.classes, one.hint, one.url) for one in table.headings] == [
        ("Host", "", "", ""),
        ("Cost", "num", "Hours", ""),
        ("Note", "", "", ""),
    ]


@pytest.mark.parametrize(
    ("sort", "host", "cost"),
    [
        ("", ("/hosts?q=x&sort=host", ""), ("/hosts?q=x&sort=cost", "descending")),
        ("-cost", ("/hosts?q=x&sort=host", ""), ("/hosts?q=x&sort=cost", "descending")),
        ("cost", ("/hosts?q=x&sort=host", ""), ("/hosts?q=x", "ascending")),
        ("host", ("/hosts?q=x&sort=-host", "ascending"), ("/hosts?q=x", "")),
        ("-host", ("/hosts?q=x&sort=host", "descending"), ("/hosts?q=x", "")),
        ("nonsense", ("/hosts?q=x&sort=host", ""), ("/hosts?q=x&sort=cost", "descending")),
    ],
)
def test_a_heading_leads_to_its_order_and_turns_that_in_force_round(
    sort: str, host: tuple[str, str], cost: tuple[str, str]
) -> None:
    address = Address("/hosts", {"q": "x", "sort": sort, "page": "3"})
    found = [(one.url, one.order) for one in sorted_by(LIST, SHOWN, address)]
    assert found == [host, cost, ("", "")]


def test_a_page_leads_to_those_around_it() -> None:
    address, rows = Address("/hosts", {"sort": "host"}), [ROW] * 5
    found = [
        pager(Page(rows[2 * number - 2 : 2 * number], number, len(rows), 2), address)
        for number in (1, 2, 3)
    ]
    assert found == [
        ("", "/hosts?sort=host&page=2"),
        ("/hosts?sort=host", "/hosts?sort=host&page=3"),
        ("/hosts?sort=host&page=2", ""),
    ]
