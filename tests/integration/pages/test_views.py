"""Saved views: listed for their owner, and opened by every user who has the link."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import httpx
import pytest

from app.errors import NotFoundError
from app.jobs.saved_views import delete_view, list_views, query_of, save_view, shared_view
from app.platform.identity import ActorKind, Principal, Right
from tests.integration.pages.test_fleet_page import job
from tests.support.html import parse

if TYPE_CHECKING:
    from app.platform.container import Container

API = "/api/v1/views"


def test_a_view_is_saved_listed_renamed_changed_and_deleted(client: httpx.Client) -> None:
    saved = client.post(API, json={"name": " mine ", "query": "?page=4&sort=-gpus&q=dense"})
    assert saved.status_code == 201
    one = saved.json()
    assert (one["name"], one["query"]) == ("mine", "q=dense&sort=-gpus")
    client.post(API, json={"name": "All of them", "query": ""})
    assert [view["name"] for view in client.get(API).json()["views"]] == ["All of them", "mine"]
    assert client.get(f"{API}/{one['id']}").json() == one
    taken = client.patch(f"{API}/{one['id']}", json={"name": "All of them"})
    assert (taken.status_code, taken.json()["code"]) == (409, "view.name_taken")
    assert client.post(API, json={"name": "mine", "query": ""}).status_code == 409
    changed = client.patch(f"{API}/{one['id']}", json={"name": "ours", "query": "owner=ann"})
    assert (changed.json()["name"], changed.json()["query"]) == ("ours", "owner=ann")
    assert client.delete(f"{API}/{one['id']}").status_code == 204
    gone = client.delete(f"{API}/{one['id']}")
    assert (gone.status_code, gone.json()["code"]) == (404, "view.not_found")


def test_an_invalid_view_is_refused(client: httpx.Client) -> None:
    for body in (
        {"name": "", "query": ""},
        {"name": "x" * 61, "query": ""},
        {"name": "x\x00", "query": ""},
        {"name": "x", "query": "q=" + "y" * 2000},
        {"name": "x"},
        {"name": "x", "query": "", "owner": "ann"},
    ):
        assert client.post(API, json=body).status_code == 422, body
    assert client.get(f"{API}/{uuid.uuid4()}").status_code == 404
    assert client.get("/views/none").status_code == 404


def test_a_view_keeps_the_filters_of_the_fleet_and_nothing_else() -> None:
    assert query_of("range=7d&q=a+b&tab=figures&silent=2&x=1") == "q=a+b&range=7d"
    assert query_of("?label=team%3Dmoe&labels=1") == "label=team%3Dmoe&labels=1"
    assert query_of("q=%00") == ""


def test_the_link_of_a_view_opens_the_fleet_as_it_has_it(
    container: Container, client: httpx.Client
) -> None:
    job(container, "dense")
    job(container, "sparse")
    saved = client.post(API, json={"name": "dense ones", "query": "q=dense&sort=job"}).json()
    opened = client.get(f"/views/{saved['id']}")
    assert (opened.status_code, opened.headers["Location"]) == (303, "/?q=dense&sort=job")
    page = parse(client.get(opened.headers["Location"]).text)
    [chosen] = page.one("nav", aria_label="Saved views").all("a", aria_current="true")
    assert chosen.text == "dense ones"
    [other] = parse(client.get("/").text).one("nav", aria_label="Saved views").all("a")
    assert (other.attributes["href"], other.attributes.get("aria-current")) == (
        "/?q=dense&sort=job",
        None,
    )


def test_views_are_of_a_person_and_their_links_for_all(container: Container) -> None:
    read = frozenset({Right.READ})
    ann, bob = (container.named(Principal(ActorKind.PERSON, name, read)) for name in ("ann", "bob"))
    made = save_view(ann, "mine", "sort=-gpus")
    save_view(bob, "mine", "owner=bob")
    for who, expected in ((ann, "sort=-gpus"), (bob, "owner=bob")):
        with who.reading() as tx:
            assert [view.query for view in list_views(tx, who.principal)] == [expected]
            assert shared_view(tx, made.id) == made
    with pytest.raises(NotFoundError):
        delete_view(bob, made.id)
    with ann.reading() as tx:
        assert list_views(tx, ann.principal) == [made]


def test_a_person_has_a_limited_number_of_views(
    client: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("app.jobs.saved_views.MOST_VIEWS", 1)
    assert client.post(API, json={"name": "first", "query": ""}).status_code == 201
    refused = client.post(API, json={"name": "second", "query": ""})
    assert (refused.status_code, refused.json()["code"]) == (409, "view.too_many")
