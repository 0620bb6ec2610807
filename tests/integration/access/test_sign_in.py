"""Sign-in with a password of the server or at a provider, until sign-out."""

from __future__ import annotations

import http
import re
from datetime import timedelta
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

import pytest
from pydantic import SecretStr
from sqlalchemy import func, insert, select, update

from app.access.audit import list_entries
from app.access.models import BrowserSession, PendingSignIn, Person
from app.access.people import create_person
from app.access.provider import MOST_PENDING
from app.access.rights import NEEDS
from app.access.sign_ins import sign_in_from_provider
from app.errors import ConflictError, InvalidAccessError
from app.platform.identity import Right, Role
from tests.integration.access.conftest import Company, serving
from tests.support.identity_provider import identity_provider, vouch

if TYPE_CHECKING:
    from collections.abc import Iterator

    import httpx

    from app.platform.settings import Settings

PASSWORD = "correct horse battery"  # noqa: S105 - of a test
SEE_OTHER = http.HTTPStatus.SEE_OTHER


def _sign_in(client: httpx.Client, name: str = "ada", password: str = PASSWORD) -> httpx.Response:
    form = {"name": name, "password": password, "next": "/plans"}
    return client.post("/sign-in", data=form, headers={"Origin": str(client.base_url).rstrip("/")})


@pytest.fixture
def ada(company: Company) -> Company:
    create_person(company.container, "ada", PASSWORD, Role.OPERATOR, "default")
    return company


def test_an_unknown_visitor_signs_in_and_returns_to_the_page(ada: Company) -> None:
    with ada.client() as client:
        asked = client.get("/incidents?page=2")
        assert asked.status_code == SEE_OTHER
        assert asked.headers["location"] == "/sign-in?next=/incidents%3Fpage%3D2"
        page = client.get(asked.headers["location"])
        assert 'value="/incidents?page=2"' in page.text
        signed_in = _sign_in(client)
        assert (signed_in.status_code, signed_in.headers["location"]) == (SEE_OTHER, "/plans")
        assert client.get("/plans").status_code == 200
        assert client.get("/api/v1/sessions").status_code == 200


def test_the_cookie_is_kept_from_scripts_and_other_sites_and_stored_as_a_digest(
    ada: Company,
) -> None:
    with ada.client() as client:
        cookie = _sign_in(client).headers["set-cookie"].lower()
        value = client.cookies["paceline_session"]
    assert {"httponly", "samesite=lax", "path=/"} <= {part.strip() for part in cookie.split(";")}
    with ada.container.reading() as tx:
        row = tx.session.execute(select(BrowserSession)).scalar_one()
        person = tx.session.execute(select(Person)).scalar_one()
    assert value.encode() not in row.sha256
    assert person.password is not None
    assert person.password.startswith("$argon2id$")


def test_over_tls_the_cookie_is_of_this_host_alone(settings: Settings) -> None:
    with serving(settings, external_url="https://paceline.example") as company:
        create_person(company.container, "ada", PASSWORD, Role.OPERATOR, "default")
        with company.client() as client:
            given = _sign_in(client).headers["set-cookie"]
        name, _, value = given.partition(";")[0].partition("=")
        parts = {part.strip().lower() for part in given.split(";")}
        assert name == "__Host-paceline_session"
        assert {"secure", "httponly", "samesite=lax", "path=/"} <= parts
        assert not any(part.startswith("domain") for part in parts)
        for shown, status in ((name, 200), ("paceline_session", 401)):
            with company.client(Cookie=f"{shown}={value}") as client:
                assert client.get("/api/v1/sessions").status_code == status
        with company.client(Cookie=f"{name}={value}", Origin=company.url) as client:
            dropped = client.post("/sign-out").headers["set-cookie"].lower()
            assert {"secure", "max-age=0"} <= {part.strip() for part in dropped.split(";")}
            assert client.get("/api/v1/sessions").status_code == 401


@pytest.mark.parametrize(("name", "password"), [("ada", "wrong"), ("unknown", PASSWORD)])
def test_a_wrong_name_and_a_wrong_password_are_answered_alike(
    ada: Company, name: str, password: str
) -> None:
    with ada.client() as client:
        answer = _sign_in(client, name, password)
        assert answer.status_code == 401
        assert "The name or the password is wrong." in answer.text
        assert "paceline_session" not in client.cookies


def test_signing_out_ends_it_on_the_server(ada: Company) -> None:
    with ada.client() as client:
        _sign_in(client)
        kept = client.cookies["paceline_session"]
        client.post("/sign-out", headers={"Origin": ada.url})
    with ada.client(Cookie=f"paceline_session={kept}") as client:
        assert client.get("/api/v1/sessions").status_code == 401
    with ada.container.reading() as tx:
        said = [(entry.actor, entry.action) for entry in list_entries(tx, 2)]
    assert said == [("ada", "signed out"), ("ada", "signed in")]


def test_a_browser_is_signed_in_for_a_time(ada: Company) -> None:
    with ada.client() as client:
        _sign_in(client)
        with ada.container.uow() as tx:
            tx.session.execute(update(BrowserSession).values(expires_at=tx.now))
        assert client.get("/api/v1/sessions").status_code == 401


def test_a_cookie_alone_changes_nothing_without_saying_its_site(ada: Company) -> None:
    with ada.client() as client:
        _sign_in(client)
        spec: dict[str, object] = {"spec": {}}
        refused = client.post("/api/v1/plans", json=spec)
        assert (refused.status_code, refused.json()["code"]) == (403, "csrf.cross_site")
        foreign = client.post(
            "/api/v1/plans", json=spec, headers={"Origin": "https://evil.example"}
        )
        assert foreign.json()["code"] == "csrf.cross_site"
        own = client.post("/api/v1/plans", json=spec, headers={"Origin": ada.url})
        assert own.json()["code"] == "spec.invalid"


def test_no_route_takes_a_change_by_a_cookie_alone(ada: Company) -> None:
    taken = {}
    with ada.client() as client:
        _sign_in(client)
        for key in NEEDS:
            method, _, path = key.partition(" ")
            if method == "GET":
                continue
            answer = client.request(method, re.sub(r"{[^}]*}", "1", path))
            if (answer.status_code, answer.json()["code"]) != (403, "csrf.cross_site"):
                taken[key] = answer.status_code, answer.text[:200]
        assert taken == {}
        assert client.get("/plans").status_code == 200


def test_a_person_has_the_rights_of_their_role_in_their_project(ada: Company) -> None:
    with ada.client() as client:
        _sign_in(client)
        assert client.get("/access").status_code == 403
        other = client.get("/api/v1/sessions", headers={"Paceline-Project": "other"})
        assert other.json()["code"] == "project.not_found"
        assert client.get("/p/other/").status_code == 404
        assert client.get("/p/default/").status_code == 200


@pytest.mark.parametrize(
    "path", ["https://evil.example/", "//evil.example", "/\\evil.example", "/\t/evil.example"]
)
def test_a_sign_in_leads_to_no_other_site(ada: Company, path: str) -> None:
    form = {"name": "ada", "password": PASSWORD, "next": path}
    with ada.client() as client:
        answer = client.post("/sign-in", data=form, headers={"Origin": ada.url})
    assert answer.headers["location"] == "/"


def test_short_passwords_and_names_that_are_taken_are_refused(ada: Company) -> None:
    with pytest.raises(InvalidAccessError):
        create_person(ada.container, "bob", "short", Role.READER, None)
    with pytest.raises(ConflictError):
        create_person(ada.container, "ada", PASSWORD, Role.READER, None)


# -- a provider ------------------------------------------------------------------------------------

GRACE = {"sub": "grace", "preferred_username": "Grace", "groups": ["research", "staff"]}
MALLORY = {"sub": "mallory", "preferred_username": "Mallory", "groups": ["staff"]}


@pytest.fixture(scope="module")
def provider() -> Iterator[str]:
    with identity_provider(GRACE, MALLORY) as url:
        yield url


@pytest.fixture
def federated(settings: Settings, provider: str) -> Iterator[Company]:
    with serving(
        settings,
        oidc_issuer=provider,
        oidc_client_id="paceline",
        oidc_client_secret=SecretStr("of-this-test"),
        oidc_roles=("research=operator@other", "sre=administrator"),
    ) as running:
        yield running


def _come_back(client: httpx.Client, subject: str) -> httpx.Response:
    begun = client.get("/sign-in/provider?next=/p/other/plans")
    assert begun.status_code == SEE_OTHER
    back = urlsplit(vouch(begun.headers["location"], subject))
    return client.get(f"{back.path}?{back.query}")


def test_groups_of_a_provider_give_roles_in_projects(federated: Company) -> None:
    with federated.client() as client:
        answer = _come_back(client, "grace")
        assert (answer.status_code, answer.headers.get("location")) == (SEE_OTHER, "/p/other/plans")
        page = client.get("/p/other/plans")
        assert page.status_code == 200
        assert "Grace" in page.text
        assert client.get("/p/default/plans").status_code == 404


def test_a_group_that_is_lost_is_lost_with_the_next_sign_in(federated: Company) -> None:
    who = {"issuer": "https://id.example", "subject": "1", "name": "Grace"}
    before: dict[str | None, Role] = {None: Role.ADMINISTRATOR, "other": Role.READER}
    after: dict[str | None, Role] = {"other": Role.OPERATOR}
    for roles in (before, after):
        signed_in = sign_in_from_provider(federated.container, **who, roles=roles)
    principal = signed_in.principal
    assert principal.everywhere == frozenset()
    assert principal.rights_in(federated.theirs.project_id) == Role.OPERATOR.rights
    assert principal.rights_in(federated.ours.project_id) == frozenset()


def test_who_has_no_role_does_not_get_in(federated: Company) -> None:
    with federated.client() as client:
        answer = _come_back(client, "mallory")
        assert answer.status_code == 401
        assert "Mallory has no role here" in answer.text
        assert "paceline_session" not in client.cookies


def test_an_answer_that_another_browser_asked_for_is_refused(federated: Company) -> None:
    with federated.client() as victim, federated.client() as attacker:
        begun = attacker.get("/sign-in/provider")
        back = urlsplit(vouch(begun.headers["location"], "grace"))
        for _ in range(2):
            answer = victim.get(f"{back.path}?{back.query}")
            assert answer.status_code == 401
        victim.get("/sign-in/provider")
        mixed = victim.get(f"{back.path}?{back.query}")
        assert mixed.status_code == 401


def test_a_sign_in_is_used_once_and_leaves_nothing(federated: Company) -> None:
    with federated.client() as client:
        begun = client.get("/sign-in/provider")
        asked = parse_qs(urlsplit(begun.headers["location"]).query)
        assert asked["code_challenge_method"] == ["S256"]
        assert asked["nonce"] != asked["state"]
        kept = client.cookies["paceline_sign_in"]
        back = urlsplit(vouch(begun.headers["location"], "grace"))
        assert client.get(f"{back.path}?{back.query}").status_code == SEE_OTHER
        client.cookies.set("paceline_sign_in", kept)
        assert client.get(f"{back.path}?{back.query}").status_code == 401
    with federated.container.reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(PendingSignIn)).scalar() == 0


def test_sign_ins_that_are_never_completed_lock_no_user_out(federated: Company) -> None:
    with federated.container.uow() as tx:
        soon = tx.now + timedelta(minutes=5)
        left = {"state": "", "nonce": "", "code_verifier": "", "next_path": "/"}
        tx.session.execute(
            insert(PendingSignIn),
            [
                {"sha256": number.to_bytes(32), "expires_at": soon, **left}
                for number in range(MOST_PENDING + 5)
            ],
        )
    with federated.client() as client:
        assert _come_back(client, "grace").status_code == SEE_OTHER
    with federated.container.reading() as tx:
        pending = select(func.count()).select_from(PendingSignIn)
        assert tx.session.execute(pending).scalar() == MOST_PENDING - 1


def test_a_sign_in_that_takes_too_long_is_over(federated: Company) -> None:
    with federated.client() as client:
        begun = client.get("/sign-in/provider")
        back = urlsplit(vouch(begun.headers["location"], "grace"))
        with federated.container.uow() as tx:
            past = tx.now - timedelta(seconds=1)
            tx.session.execute(update(PendingSignIn).values(expires_at=past))
        assert client.get(f"{back.path}?{back.query}").status_code == 401


def test_an_unreachable_provider_is_reported(settings: Settings) -> None:
    with (
        serving(settings, oidc_issuer="http://127.0.0.1:1", oidc_client_id="x") as company,
        company.client() as client,
    ):
        answer = client.get("/sign-in/provider")
    assert answer.status_code == 503
    assert "The provider does not answer" in answer.text


def test_an_administrator_sees_the_page_of_access(company: Company) -> None:
    create_person(company.container, "root", PASSWORD, Role.ADMINISTRATOR, None)
    company.token(Right.READ, name="grafana")
    with company.client() as client:
        _sign_in(client, "root")
        page = client.get("/access")
        assert page.status_code == 200
        for words in ("grafana", "audit log", "other", "1\u00a0valid token", "Sign out"):
            assert words in page.text, words
        assert client.get("/access/audit").status_code == 200
        export = client.get("/access/audit.csv").text.splitlines()
        assert export[0].startswith("id,at,actor_kind")
        assert any("token grafana" in line for line in export)
        inner = client.get("/p/other/rules").text
        assert 'href="/p/other/plans"' in inner
        assert 'data-base="/p/other"' in inner
        assert 'src="/static/' in inner
