"""Users are listed, given roles and passwords, disabled and deleted; one administrator stays."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

import pytest

from app.access.audit import list_entries
from app.access.people import (
    create_person,
    delete_person,
    list_people,
    person_id_of,
    set_disabled,
    set_password,
    set_role,
)
from app.access.sign_ins import sign_in, sign_in_from_provider
from app.errors import ConflictError, SignInError, UnauthenticatedError
from app.platform.identity import Right, Role
from tests.support.command import paceline

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.integration.access.conftest import Company

PASSWORD = "correct horse battery"  # noqa: S105 - of a test
OTHER = "another horse battery"
ISSUER = "https://login.example/realms/company"


def _admin(company: Company) -> httpx.Client:
    return company.client(company.token(Right.ADMIN, project=None))


def _people(client: httpx.Client) -> dict[str, dict[str, Any]]:
    return {person["name"]: person for person in client.get("/api/v1/people").json()["people"]}


def test_an_administrator_lists_people_and_disables_a_user(company: Company) -> None:
    create_person(company.container, "ada", PASSWORD, Role.OPERATOR, "other")
    cookie = sign_in(company.container, "ada", PASSWORD).cookie
    with _admin(company) as client, company.client(Cookie=f"paceline_session={cookie}") as ada:
        [person] = client.get("/api/v1/people").json()["people"]
        assert (person["name"], person["issuer"], person["disabled_at"]) == ("ada", None, None)
        assert person["roles"] == [{"project": "other", "role": "operator"}]
        assert "argon2" not in str(person)
        assert ada.get("/api/v1/sessions").status_code == 200
        address = f"/api/v1/people/{person['id']}"
        assert client.patch(address, json={"disabled": True}).status_code == 204
        assert ada.get("/api/v1/sessions").status_code == 401
        with pytest.raises(UnauthenticatedError):
            sign_in(company.container, "ada", PASSWORD)
        assert client.patch(address, json={"disabled": False}).status_code == 204
        assert sign_in(company.container, "ada", PASSWORD).principal.name == "ada"
        # A browser that was signed in before stays signed out.
        assert ada.get("/api/v1/sessions").status_code == 401
        assert client.delete(address).status_code == 204
        assert client.delete(address).status_code == 404
    with company.container.reading() as tx:
        said = [(entry.action, entry.subject) for entry in list_entries(tx, 5)]
    assert said == [
        ("deleted", "person ada"),
        ("signed in", "a browser"),
        ("enabled", "person ada"),
        ("disabled", "person ada"),
        ("created", "token admin-all"),
    ]


def test_a_role_is_given_and_taken_at_once(company: Company) -> None:
    create_person(company.container, "ada", PASSWORD, Role.READER, "other")
    cookie = sign_in(company.container, "ada", PASSWORD).cookie
    rule = {
        "name": "Slow",
        "condition": {"kind": "slowdown", "at_least": 1.2, "clears_below": 1.1},
    }
    own = {"Cookie": f"paceline_session={cookie}", "Origin": company.url}
    with _admin(company) as client, company.client(**own) as ada:
        address = f"/api/v1/people/{_people(client)['ada']['id']}/role"
        assert ada.post("/api/v1/alert-rules", json=rule).status_code == 403
        given = {"role": "operator", "project": "other"}
        assert client.put(address, json=given).status_code == 204
        assert ada.post("/api/v1/alert-rules", json=rule).status_code == 201
        assert client.put(address, json={"role": None, "project": "other"}).status_code == 204
        assert _people(client)["ada"]["roles"] == []
        assert ada.get("/api/v1/sessions").status_code == 404
        nowhere = client.put(address, json={"role": "reader", "project": "nowhere"})
        assert nowhere.json()["code"] == "project.not_found"


def test_the_last_administrator_stays_unless_the_command_line_says_otherwise(
    company: Company,
) -> None:
    create_person(company.container, "ada", PASSWORD, Role.ADMINISTRATOR, None)
    cookie = sign_in(company.container, "ada", PASSWORD).cookie
    with company.client(Cookie=f"paceline_session={cookie}", Origin=company.url) as ada:
        address = f"/api/v1/people/{_people(ada)['ada']['id']}"
        for answer in (
            ada.put(f"{address}/role", json={"role": None}),
            ada.put(f"{address}/role", json={"role": "reader"}),
        ):
            assert (answer.status_code, answer.json()["code"]) == (
                409,
                "access.last_administrator",
            )
        assert _people(ada)["ada"]["roles"] == [{"project": None, "role": "administrator"}]
    [found] = _listed(company.container)
    # The command line, unlike the API, may disable the last administrator.
    set_disabled(company.container, found, disabled=True)


def test_no_user_disables_or_deletes_themselves(company: Company) -> None:
    for name in ("ada", "bob"):
        create_person(company.container, name, PASSWORD, Role.ADMINISTRATOR, None)
    cookie = sign_in(company.container, "ada", PASSWORD).cookie
    with company.client(Cookie=f"paceline_session={cookie}", Origin=company.url) as ada:
        people = _people(ada)
        address = f"/api/v1/people/{people['ada']['id']}"
        for answer in (ada.delete(address), ada.patch(address, json={"disabled": True})):
            assert (answer.status_code, answer.json()["code"]) == (409, "access.oneself")
        assert ada.delete(f"/api/v1/people/{people['bob']['id']}").status_code == 204
        assert list(_people(ada)) == ["ada"]


def _listed(container: Container) -> list[uuid.UUID]:
    with container.everywhere().reading() as tx:
        return [person.id for person in list_people(tx)]


def test_a_new_password_signs_out_everywhere(company: Company) -> None:
    create_person(company.container, "ada", PASSWORD, Role.READER, None)
    cookie = sign_in(company.container, "ada", PASSWORD).cookie
    [ada] = _listed(company.container)
    set_password(company.container, ada, OTHER)
    with pytest.raises(UnauthenticatedError):
        sign_in(company.container, "ada", PASSWORD)
    sign_in(company.container, "ada", OTHER)
    with company.client(Cookie=f"paceline_session={cookie}") as client:
        assert client.get("/api/v1/sessions").status_code == 401


def test_whom_a_provider_vouches_for_has_roles_there_and_can_be_kept_out(
    company: Company,
) -> None:
    who = {"issuer": ISSUER, "subject": "1", "name": "Grace"}
    signed_in = sign_in_from_provider(company.container, **who, roles={None: Role.READER})
    # Two users of one name are distinguished by their provider, also in the log.
    assert signed_in.principal.name == "Grace (login.example/realms/company)"
    for subject in ("2", "3"):
        twin = {"issuer": f"https://id-{subject}.example", "subject": subject, "name": "Twin"}
        sign_in_from_provider(company.container, **twin, roles={None: Role.READER})
    create_person(company.container, "Grace", PASSWORD, Role.READER, None)
    with company.container.reading() as tx:
        grace = person_id_of(tx, signed_in.principal.name)
        # A name without a provider refers to this server's own user.
        assert person_id_of(tx, "Grace") != grace
        with pytest.raises(ConflictError, match="Several people"):
            person_id_of(tx, "Twin")
    with pytest.raises(ConflictError, match=r"has .* at https://login"):
        set_role(company.container, grace, Role.ADMINISTRATOR, None)
    with pytest.raises(ConflictError, match=r"has .* at https://login"):
        set_password(company.container, grace, OTHER)
    set_disabled(company.container, grace, disabled=True)
    with pytest.raises(SignInError):
        sign_in_from_provider(company.container, **who, roles={None: Role.READER})
    delete_person(company.container, grace)
    sign_in_from_provider(company.container, **who, roles={None: Role.READER})


def test_names_of_a_provider_are_bounded_and_printable(company: Company) -> None:
    name = "\u202eadmin\n" + "x" * 10_000
    signed_in = sign_in_from_provider(
        company.container, issuer=ISSUER, subject="2", name=name, roles={None: Role.READER}
    )
    assert len(signed_in.principal.name) < 200
    assert signed_in.principal.name.isprintable()
    with company.container.reading() as tx:
        [entry, *_] = list_entries(tx, 1)
    assert (entry.actor, entry.detail) == (signed_in.principal.name, "subject 2")


@pytest.fixture
def database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.database_url is not None
    monkeypatch.setenv("PACELINE_DATABASE_URL", settings.database_url)
    monkeypatch.setenv("COLUMNS", "200")


@pytest.mark.usefixtures("database")
def test_the_command_line_manages_people(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    def does(*arguments: str) -> str:
        done = paceline("user", *arguments)
        assert done.returncode == 0, done.stderr
        return done.stdout

    monkeypatch.setenv("PACELINE_PASSWORD", PASSWORD)
    does("create", "ada", "--role", "reader")
    assert "reader of all projects" in does("list")
    does("role", "ada", "--role", "operator", "--project", "default")
    assert "operator of default" in does("list")
    does("role", "ada")
    assert "reader" not in does("list")
    monkeypatch.setenv("PACELINE_PASSWORD", OTHER)
    does("password", "ada")
    sign_in(container, "ada", OTHER)
    does("disable", "ada")
    assert "disabled" in does("list")
    does("enable", "ada")
    does("delete", "ada")
    assert "ada" not in does("list")
    gone = paceline("user", "disable", "ada")
    assert (gone.returncode, "There is no person ada" in gone.stderr) == (1, True)
