"""Tokens: their rights, their expiry, and their storage."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, update

from app.access.audit import list_entries
from app.access.models import Token
from app.access.tokens import create_token, digest, is_token, list_tokens, new_token, revoke_token
from app.errors import ConflictError, InvalidAccessError, NotFoundError
from app.platform.identity import Right
from tests.integration.access.conftest import METRICS_TOKEN

if TYPE_CHECKING:
    from app.platform.container import Container
    from tests.integration.access.conftest import Company

HOUR = timedelta(hours=1)
READ, OPERATE, INGEST, ADMIN = Right.READ, Right.OPERATE, Right.INGEST, Right.ADMIN


def test_only_the_digest_of_a_token_is_stored(container: Container) -> None:
    made = create_token(container.everywhere(), name="ci", rights=[READ], project="default")
    assert is_token(made.secret)
    with container.everywhere().reading() as tx:
        row = tx.session.execute(select(Token)).scalar_one()
    assert row.sha256 == digest(made.secret)
    assert made.secret not in str(vars(row))
    assert row.begins == made.secret[:8]


def test_tokens_have_256_random_bits() -> None:
    tokens = {new_token() for _ in range(100)}
    assert len(tokens) == 100
    assert all(is_token(token) for token in tokens)
    assert not is_token("plc_short")
    assert not is_token(new_token().replace("plc_", "ghp_"))
    assert not is_token("plc_" + "é" * 43)


def test_no_one_without_a_token_is_answered(company: Company) -> None:
    with company.client() as client:
        answer = client.get("/api/v1/sessions")
        assert answer.status_code == 401
        assert answer.json()["code"] == "access.unauthenticated"
        assert answer.headers["www-authenticate"] == "Bearer"
        for path in ("/healthz", "/docs/", "/api/docs", "/api/openapi.json"):
            assert client.get(path).status_code == 200, path


@pytest.mark.parametrize("token", ["plc_unknown", "x", "plc_" + "A" * 43])
def test_an_unknown_token_opens_nothing(company: Company, token: str) -> None:
    with company.client(token) as client:
        assert client.get("/api/v1/sessions").status_code == 401


@pytest.mark.parametrize("name", ["token", "access_token", "authorization", "api_key"])
def test_a_token_in_an_address_opens_nothing(company: Company, name: str) -> None:
    """Addresses appear in logs of proxies, histories of browsers and Referer headers."""
    token = company.token(ADMIN, project=None, name="in-the-address")
    with company.client() as client:
        for path in ("/api/v1/sessions", "/api/v1/events", "/api/v1/tokens", "/metrics"):
            for value in (token, f"Bearer {token}", METRICS_TOKEN):
                assert client.get(path, params={name: value}).status_code == 401, path
        sent = client.post("/api/v1/jobs/job/sessions", params={name: token}, content=b"x")
        assert sent.status_code == 401
        assert client.get("/plans", params={name: token}).status_code == 303
    with company.container.reading() as tx:
        used = select(Token.last_used_at).where(Token.name == "in-the-address")
        assert tx.session.execute(used).scalar_one() is None


def test_a_body_of_an_unknown_peer_is_not_read(company: Company) -> None:
    def endless() -> object:
        while True:
            yield b"x" * 65536

    with company.client() as client:
        answer = client.post("/api/v1/jobs/llm/sessions", content=endless())  # type: ignore[arg-type]
    assert answer.status_code == 401


@pytest.mark.parametrize(
    ("rights", "method", "path", "status"),
    [
        ([READ], "GET", "/api/v1/sessions", 200),
        ([READ], "POST", "/api/v1/plans", 403),
        ([READ], "POST", "/api/v1/jobs/llm/sessions", 403),
        ([INGEST], "GET", "/api/v1/sessions", 403),
        ([INGEST], "POST", "/api/v1/jobs/llm/sessions", 422),
        ([OPERATE], "GET", "/api/v1/sessions", 200),
        ([OPERATE], "POST", "/api/v1/channels/reseal", 403),
        ([OPERATE], "GET", "/api/v1/tokens", 403),
        ([OPERATE], "GET", "/api/v1/audit", 403),
    ],
)
def test_a_token_allows_what_its_scopes_say(
    company: Company, rights: list[Right], method: str, path: str, status: int
) -> None:
    with company.client(company.token(*rights)) as client:
        assert client.request(method, path).status_code == status


def test_an_administrators_token_may_everything_everywhere(company: Company) -> None:
    with company.client(company.token(ADMIN, project=None)) as client:
        assert client.get("/api/v1/tokens").status_code == 200
        assert client.get("/api/v1/sessions", headers={"Paceline-Project": "other"}).is_success
        names = [project["name"] for project in client.get("/api/v1/projects").json()["projects"]]
        assert names == ["default", "other"]


def test_a_project_that_is_not_ones_own_is_none(company: Company) -> None:
    with company.client(company.token(READ)) as client:
        known = client.get("/api/v1/sessions", headers={"Paceline-Project": "default"})
        assert known.status_code == 200
        said = [
            client.get("/api/v1/sessions", headers={"Paceline-Project": name})
            for name in ("other", "nowhere")
        ]
        assert [answer.status_code for answer in said] == [404, 404]
        assert {answer.json()["code"] for answer in said} == {"project.not_found"}
        assert said[0].text.replace("other", "nowhere") == said[1].text
        names = [project["name"] for project in client.get("/api/v1/projects").json()["projects"]]
        assert names == ["default"]


def test_a_revoked_token_opens_nothing_at_once(company: Company) -> None:
    with company.client(company.token(READ, name="gone")) as client:
        assert client.get("/api/v1/sessions").status_code == 200
        revoke_token(company.container, "gone")
        assert client.get("/api/v1/sessions").status_code == 401
    with pytest.raises(NotFoundError):
        revoke_token(company.container, "gone")
    # The name of a revoked token can be used again.
    company.token(READ, name="gone")


def test_an_expired_token_opens_nothing(company: Company) -> None:
    with company.client(company.token(READ, name="old")) as client:
        with company.container.uow() as tx:
            tx.session.execute(update(Token).values(expires_at=tx.now - timedelta(seconds=1)))
        assert client.get("/api/v1/sessions").status_code == 401
        with company.container.reading() as tx:
            assert [token.valid for token in list_tokens(tx)] == [False]


def test_the_last_use_is_noted_once_a_minute(company: Company) -> None:
    with company.client(company.token(READ, name="used")) as client:
        client.get("/api/v1/sessions")
        with company.container.reading() as tx:
            first = tx.session.execute(select(Token.last_used_at)).scalar_one()
        client.get("/api/v1/sessions")
        with company.container.reading() as tx:
            assert tx.session.execute(select(Token.last_used_at)).scalar_one() == first
    assert first is not None


def test_tokens_are_made_and_revoked_over_http(company: Company) -> None:
    with company.client(company.token(ADMIN, project=None)) as client:
        body = {"name": "ci", "scopes": ["ingest", "read"], "project": "other", "expires_days": 7}
        made = client.post("/api/v1/tokens", json=body)
        assert made.status_code == 201
        secret = made.json()["secret"]
        assert secret not in client.get("/api/v1/tokens").text
        with company.client(secret) as other:
            assert other.get("/api/v1/sessions").status_code == 200
        again = client.post("/api/v1/tokens", json=body)
        assert again.json()["code"] == "token.name_taken"
        assert client.delete("/api/v1/tokens/ci").status_code == 204
        assert "ci" not in {t["name"] for t in client.get("/api/v1/tokens").json()["tokens"]}


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"name": " x"}, "name"),
        ({"rights": []}, "scopes"),
        ({"rights": [INGEST], "project": None}, "project"),
        ({"rights": [ADMIN], "project": "default"}, "project"),
        ({"expires": timedelta(0)}, "expires_days"),
        ({"secret": "plc_mine"}, "secret"),
    ],
)
def test_an_impossible_token_is_refused_with_its_field(
    container: Container, changes: dict[str, object], field: str
) -> None:
    values: dict[str, object] = {"name": "x", "rights": [READ], "project": "default"} | changes
    with pytest.raises(InvalidAccessError) as caught:
        create_token(container.everywhere(), **values)  # type: ignore[arg-type]
    assert [fault.column for fault in caught.value.faults] == [field]


def test_two_valid_tokens_of_one_name_cannot_be(container: Container) -> None:
    everywhere = container.everywhere()
    create_token(everywhere, name="x", rights=[READ], project="default")
    with pytest.raises(ConflictError):
        create_token(everywhere, name="x", rights=[READ], project=None)


def test_metrics_take_a_token_of_their_own_or_one_that_reads_everywhere(company: Company) -> None:
    tokens = {
        METRICS_TOKEN: 200,
        company.token(READ, project=None): 200,
        company.token(READ): 403,
        new_token(): 401,
    }
    for token, status in tokens.items():
        with company.client(token) as client:
            assert client.get("/metrics").status_code == status
    with company.client(METRICS_TOKEN) as client:
        assert client.get("/api/v1/sessions").status_code == 401


def test_a_token_is_renewed_with_its_secret_and_not_after_its_end(company: Company) -> None:
    secret = company.token(Right.READ, name="bot")
    address = "/api/v1/tokens/bot/renew"
    with company.client(company.token(Right.ADMIN, project=None)) as client:
        renewed = client.post(address, json={"expires_days": 30})
        assert (renewed.status_code, renewed.json()["valid"]) == (200, True)
        with company.container.reading() as tx:
            row = tx.session.execute(select(Token).where(Token.name == "bot")).scalar_one()
            assert row.expires_at == pytest.approx(tx.now + timedelta(days=30), abs=HOUR)
        with company.client(secret) as bot:
            assert bot.get("/api/v1/sessions").status_code == 200
            assert bot.post(address, json={}).status_code == 403
        for days in (0, 3651):
            assert client.post(address, json={"expires_days": days}).status_code == 422
        with company.container.uow() as tx:
            tx.session.execute(update(Token).where(Token.name == "bot").values(expires_at=tx.now))
        over = client.post(address, json={})
        assert (over.status_code, over.json()["code"]) == (409, "token.expired")
        assert client.post("/api/v1/tokens/unknown/renew", json={}).status_code == 404
    with company.container.reading() as tx:
        said = [(entry.action, entry.subject) for entry in list_entries(tx, 10)]
    assert said.count(("renewed", "token bot")) == 1


def test_the_last_token_that_administers_is_not_revoked_by_itself(company: Company) -> None:
    made = create_token(
        company.container, name="only", rights=[Right.ADMIN], project=None, expires=None
    )
    with company.client(Authorization=f"Bearer {made.secret}") as client:
        answer = client.delete("/api/v1/tokens/only")
        assert (answer.status_code, answer.json()["code"]) == (409, "access.last_administrator")
        assert [one["valid"] for one in client.get("/api/v1/tokens").json()["tokens"]] == [True]
