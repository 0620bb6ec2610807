"""Passwords cannot be guessed in large numbers, and an attacker locks no user out."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable
from datetime import timedelta
from threading import Barrier, Thread
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select, update

from app.access.audit import list_entries
from app.access.guesses import (
    AT_A_NAME,
    KNOWN_FOR,
    MOST_KNOWN,
    OF_A_PEER,
    OF_A_PEER_AT_A_NAME,
    buckets_of,
    pay,
    prune_guesses,
)
from app.access.models import GuessBucket, KnownBrowser
from app.access.people import create_person, person_id_of, set_disabled, set_password
from app.access.sign_ins import SignedIn, sign_in, write_refusals
from app.errors import TooManyGuessesError, UnauthenticatedError
from app.platform.identity import Role
from tests.integration.access.conftest import Company, serving

if TYPE_CHECKING:
    import httpx

    from app.platform.settings import Settings

PASSWORD = "correct horse battery"  # noqa: S105 - of a test
STRANGER, HOME = "192.0.2.7", "198.51.100.1"


@pytest.fixture
def ada(company: Company) -> Company:
    create_person(company.container, "ada", PASSWORD, Role.OPERATOR, "default")
    return company


def _form(client: httpx.Client, name: str, password: str) -> httpx.Response:
    return client.post("/sign-in", data={"name": name, "password": password})


def _use_up(company: Company, name: str, peer: str) -> None:
    """Use up all guesses, without the cost of checking passwords."""
    _pay_until_refused(company, (name for _ in range(10_000)), peer)


def _pay_until_refused(company: Company, names: Iterable[str], peer: str) -> None:
    with contextlib.suppress(TooManyGuessesError):
        for name in names:
            pay(company.container, buckets_of(name, peer))
        pytest.fail("no guess was refused")


def _later(company: Company, wait: timedelta) -> None:
    """Move the counters of guesses back by a time."""
    with company.container.uow() as tx:
        tx.session.execute(update(GuessBucket).values(owed_until=GuessBucket.owed_until - wait))


@pytest.mark.parametrize("name", ["ada", "unknown"])
def test_guesses_are_limited_alike_for_known_and_unknown_names(ada: Company, name: str) -> None:
    with ada.client(Origin=ada.url) as client:
        answers = [_form(client, name, "wrong") for _ in range(OF_A_PEER_AT_A_NAME.at_once + 2)]
    assert [answer.status_code for answer in answers] == [401] * OF_A_PEER_AT_A_NAME.at_once + [
        429,
        429,
    ]
    refused = answers[-1]
    assert refused.json()["code"] == "access.too_many_guesses"
    assert 30 <= int(refused.headers["retry-after"]) <= 120
    with ada.client(Origin=ada.url, Accept="text/html") as browser:
        page = _form(browser, name, "wrong")
    assert page.status_code == 429
    assert "There were too many wrong passwords" in page.text


def test_too_many_guesses_are_in_the_audit_log(ada: Company) -> None:
    _use_up(ada, "ada", STRANGER)
    _use_up(ada, "typed-into-the-wrong-field", HOME)
    for name, peer in (("ada", STRANGER), ("typed-into-the-wrong-field", HOME)):
        with pytest.raises(TooManyGuessesError):
            sign_in(ada.container, name, PASSWORD, peer)
    write_refusals(ada.container)
    with ada.container.reading() as tx:
        said = {
            (entry.actor, entry.subject, entry.detail)
            for entry in list_entries(tx, 10)
            if entry.action == "refused"
        }
    assert said == {
        (STRANGER, "a sign-in as ada", "access.too_many_guesses"),
        (HOME, "a sign-in", "access.too_many_guesses"),
    }


def test_a_stranger_locks_no_user_out(ada: Company) -> None:
    _use_up(ada, "ada", STRANGER)
    with pytest.raises(TooManyGuessesError):
        sign_in(ada.container, "ada", PASSWORD, STRANGER)
    assert sign_in(ada.container, "ada", PASSWORD, HOME).principal.name == "ada"
    # One address cannot use up the guesses at a name: all addresses together have more a minute.
    assert AT_A_NAME.every < OF_A_PEER_AT_A_NAME.every
    assert AT_A_NAME.at_once > OF_A_PEER_AT_A_NAME.at_once


def test_no_user_is_locked_out_for_good(ada: Company) -> None:
    _use_up(ada, "ada", STRANGER)
    _later(ada, OF_A_PEER_AT_A_NAME.every)
    assert sign_in(ada.container, "ada", PASSWORD, STRANGER).principal.name == "ada"


def test_one_password_tried_with_many_names_is_slowed_as_well(ada: Company) -> None:
    names = (f"name {number}" for number in range(OF_A_PEER.at_once + 1))
    _pay_until_refused(ada, names, STRANGER)
    with pytest.raises(TooManyGuessesError):
        sign_in(ada.container, "ada", PASSWORD, STRANGER)
    assert sign_in(ada.container, "ada", PASSWORD, HOME).principal.name == "ada"


def test_many_addresses_share_the_guesses_of_a_name(ada: Company) -> None:
    for number in range(AT_A_NAME.at_once):
        pay(ada.container, buckets_of("ada", f"2001:db8:0:{number:x}::/64"))
    with pytest.raises(TooManyGuessesError) as refused:
        sign_in(ada.container, "ada", PASSWORD, HOME)
    assert refused.value.retry_after_s <= AT_A_NAME.every.total_seconds()


def test_a_browser_with_an_earlier_sign_in_is_not_slowed_by_others(ada: Company) -> None:
    """Also behind a proxy, where the owner and all strangers have one address."""
    with ada.client(Origin=ada.url) as client:
        assert _form(client, "ada", PASSWORD).status_code == 303
        known = client.cookies["paceline_known"]
        for number in range(AT_A_NAME.at_once):
            pay(ada.container, buckets_of("ada", f"192.0.2.{number}"))
        _use_up(ada, "ada", "127.0.0.1")
        client.cookies.delete("paceline_session")
        assert _form(client, "ada", PASSWORD).status_code == 303
        assert client.cookies["paceline_known"] == known
        # The cookie alone gives no access, and belongs to this user only.
        client.cookies.delete("paceline_session")
        assert client.get("/api/v1/sessions").status_code == 401
        create_person(ada.container, "bob", PASSWORD, Role.READER, "default")
        _use_up(ada, "bob", "127.0.0.1")
        assert _form(client, "bob", PASSWORD).status_code == 429
    with ada.client(Origin=ada.url) as client:
        assert _form(client, "ada", PASSWORD).status_code == 429


def test_who_has_a_known_browser_does_not_guess_for_long_either(ada: Company) -> None:
    known = sign_in(ada.container, "ada", PASSWORD, HOME).known_by
    for _ in range(10):
        with pytest.raises(UnauthenticatedError):
            sign_in(ada.container, "ada", "wrong", HOME, known)
    with pytest.raises(TooManyGuessesError):
        sign_in(ada.container, "ada", PASSWORD, HOME, known)


def test_a_cookie_that_another_page_set_makes_no_browser_known(ada: Company) -> None:
    first = sign_in(ada.container, "ada", PASSWORD, HOME, "planted")
    assert first.known_by not in {None, "planted"}
    with ada.container.reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(KnownBrowser)).scalar() == 1


@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(lambda company, who: set_password(company, who, PASSWORD), id="password"),
        pytest.param(lambda company, who: set_disabled(company, who, disabled=True), id="disabled"),
    ],
)
def test_browsers_are_forgotten_with_a_password(ada: Company, ends: Callable[..., None]) -> None:
    sign_in(ada.container, "ada", PASSWORD, HOME)
    with ada.container.reading() as tx:
        who = person_id_of(tx, "ada")
    ends(ada.container, who)
    with ada.container.reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(KnownBrowser)).scalar() == 0


def test_right_passwords_cost_nothing(ada: Company) -> None:
    for _ in range(OF_A_PEER_AT_A_NAME.at_once + 2):
        sign_in(ada.container, "ada", PASSWORD, STRANGER)
    with ada.container.uow() as tx:
        prune_guesses(tx)
    with ada.container.reading() as tx:
        assert tx.session.execute(select(func.count()).select_from(GuessBucket)).scalar() == 0


def test_refused_guesses_store_nothing_and_old_rows_are_deleted(ada: Company) -> None:
    _use_up(ada, "ada", STRANGER)

    def rows() -> int | None:
        with ada.container.reading() as tx:
            return tx.session.execute(select(func.count()).select_from(GuessBucket)).scalar()

    before = rows()
    for name in ("ada", *(f"name {number}" for number in range(200))):
        _use_up(ada, name, STRANGER)
        if name == "ada":
            assert rows() == before
    # Rows of one address: its own, and two for each guess that was admitted.
    assert (rows() or 0) <= 1 + 2 * OF_A_PEER.at_once
    _later(ada, timedelta(days=1))
    with ada.container.uow() as tx:
        prune_guesses(tx)
    assert rows() == 0


def test_browsers_that_a_person_has_are_bounded_and_forgotten(ada: Company) -> None:
    made = [sign_in(ada.container, "ada", PASSWORD, HOME) for _ in range(MOST_KNOWN + 2)]
    assert len({signed_in.known_by for signed_in in made}) == MOST_KNOWN + 2
    with ada.container.uow() as tx:
        count = select(func.count()).select_from(KnownBrowser)
        assert tx.session.execute(count).scalar() == MOST_KNOWN
        tx.session.execute(update(KnownBrowser).values(seen_at=tx.now - 2 * KNOWN_FOR))
        prune_guesses(tx)
        assert tx.session.execute(count).scalar() == 0


def test_several_processes_at_once_let_through_no_more(
    settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counters are in the database, so each process counts the guesses of all."""
    monkeypatch.setattr("app.access.sign_ins._is_correct", lambda _stored, _password: False)
    with serving(settings) as company:
        create_person(company.container, "ada", PASSWORD, Role.READER, None)
        at_once = 8
        together = Barrier(at_once)
        outcomes: list[str] = []

        def guess() -> None:
            together.wait()
            for _ in range(5):
                try:
                    outcomes.append(_outcome(company, STRANGER))
                except Exception as error:  # noqa: BLE001 - shown by the comparison below
                    outcomes.append(repr(error))

        threads = [Thread(target=guess) for _ in range(at_once)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert (
        sorted(outcomes)
        == ["refused"] * (40 - OF_A_PEER_AT_A_NAME.at_once)
        + ["wrong"] * OF_A_PEER_AT_A_NAME.at_once
    )


def _outcome(company: Company, peer: str) -> str:
    try:
        found: SignedIn = sign_in(company.container, "ada", "wrong", peer)
    except TooManyGuessesError:
        return "refused"
    except UnauthenticatedError:
        return "wrong"
    return found.principal.name
