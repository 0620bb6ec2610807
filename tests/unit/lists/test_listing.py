"""A list says once what its columns are: their SQL, their orders, their names in files."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Annotated

import pytest
from pydantic import Field
from sqlalchemy.dialects import postgresql

from app.db.models.sessions import Job, Session
from app.lists.columns import Column, in_files
from app.lists.listing import Listing, PageRequest


@dataclass(frozen=True, slots=True)
class Row:
    job: Annotated[str, Column(Job.name, sort="job")]
    steps: Annotated[int, Column(Session.steps, sort="-steps", csv="profiled_steps")]
    world: Annotated[int, Column(Session.world, csv=None)] = 1
    pinned: Annotated[bool, Column(Session.pinned), Field(exclude=True)] = False
    number: Annotated[int, Column(Session.number, csv="session"), Field(exclude=True)] = 0
    spare: int = 0
    archived_at: Annotated[datetime | None, Column(Job.archived_at, sort="archived", csv=None)] = (
        None
    )


@dataclass(frozen=True, slots=True)
class Seen:
    seen: Annotated[int | None, Column(sort="seen")]


LIST = Listing(
    Row,
    lambda query: query.join(Job),
    ties=(Session.id.expression,),
    default_sort="-steps",
    model=Session,
)


def sql(*parts: object) -> list[str]:
    return [str(part.compile(dialect=postgresql.dialect())) for part in parts]  # type: ignore[attr-defined, no-untyped-call]


def test_the_query_reads_each_column_by_its_name() -> None:
    assert list(LIST.query().selected_columns.keys()) == [
        *("job", "steps", "world", "pinned", "number", "archived_at"),
    ]
    [query] = sql(LIST.query())
    assert "job.name AS job" in query
    assert "JOIN job" in query


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        ("job", "job.name ASC NULLS LAST"),
        ("-job", "job.name DESC NULLS LAST"),
        ("steps", "session.steps ASC"),
        ("", "session.steps DESC"),
        ("archived", "job.archived_at ASC NULLS LAST"),
        ("-nonsense", "session.steps DESC"),
    ],
)
def test_an_order_ends_with_that_of_equals(asked: str, expected: str) -> None:
    assert sql(*LIST.order(asked)) == [expected, "session.id"]


def test_a_list_without_a_default_order_has_that_of_equals() -> None:
    assert sql(*Listing(Row, ties=(Session.id.expression,)).order("")) == ["session.id"]


def test_files_have_what_the_api_has_unless_a_column_says_otherwise() -> None:
    assert in_files(Row) == {
        "job": "job",
        "profiled_steps": "steps",
        "session": "number",
        "spare": "spare",
    }


def test_rows_are_made_by_name() -> None:
    assert LIST.rows([{"steps": 3, "job": "llm"}]) == [Row("llm", 3)]


def test_rows_that_are_here_are_sorted_and_paged_and_equals_stay_in_order() -> None:
    rows = [Row("a", 1), Row("b", 2), Row("c", 2), Row("d", 3)]
    page = LIST.page(rows, PageRequest("-steps", 1, 3))
    assert [row.job for row in page.rows] == ["d", "b", "c"]
    assert (page.number, page.pages, page.first, page.last) == (1, 2, 1, 3)
    page = LIST.page(rows, PageRequest("job", 99, 3))
    assert ([row.job for row in page.rows], page.number) == (["d"], 2)
    assert (page.first, page.last, page.total) == (4, 4, 4)


@pytest.mark.parametrize("sort", ["seen", "-seen"])
def test_rows_without_a_value_come_last_in_either_order(sort: str) -> None:
    listing = Listing(Seen, default_sort="seen")
    page = listing.page([Seen(None), Seen(1), Seen(2)], PageRequest(sort))
    assert page.rows[-1] == Seen(None)


def test_an_empty_list_is_one_page() -> None:
    page = LIST.page([], PageRequest(page=3))
    assert (page.number, page.pages, page.rows) == (1, 1, [])
