"""Bodies that wait for workers: their limits, and their deletion with the session."""

from __future__ import annotations

import concurrent.futures
from typing import TYPE_CHECKING

from sqlalchemy import text

from tests.integration.api import bodies, chunks
from tests.integration.api.chunks import put, seal

if TYPE_CHECKING:
    from tests.integration.api.conftest import Install, Installation

_FULL = """
CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN RAISE EXCEPTION 'could not extend file: No space left' USING ERRCODE = '53100'; END $$;
CREATE TRIGGER full_disk BEFORE INSERT ON inbox FOR EACH ROW EXECUTE FUNCTION full_disk()
"""


def test_an_inbox_that_is_full_puts_senders_off_until_workers_have_taken_it(
    install: Install,
) -> None:
    with install(inbox_bytes=1) as installation:
        put(installation, "0")
        assert put(installation, "1").status_code == 202
        installation.look_again()
        full = put(installation, "2")
        assert (full.status_code, full.json()["code"]) == (429, "inbox.full")
        assert int(full.headers["retry-after"]) > 0
        assert installation.metric("paceline_ingest_refusals_total", code="inbox.full") == 1
        assert installation.metric("paceline_inbox_chunks") == 1
        assert installation.metric("paceline_inbox_bytes") > 0
        assert installation.metric("paceline_inbox_oldest_seconds") > 0
        installation.absorb_all()
        assert installation.metric("paceline_inbox_chunks") == 0
        assert installation.metric("paceline_inbox_oldest_seconds") == 0
        installation.look_again()
        answer = put(installation, "2")
        assert answer.status_code == 202
        installation.absorb_all()
        assert chunks.detail(installation, answer)["intake"]["chunks"] == 3
        # A 429 answer does not count as a refused chunk.
        assert chunks.detail(installation, answer)["intake"]["refused_chunks"] == 0


def test_workers_that_are_away_for_long_put_senders_off(install: Install) -> None:
    with install(inbox_age_s=60.0) as installation:
        put(installation, "0")
        put(installation, "1")
        with installation.container.engine.begin() as connection:
            connection.execute(text("UPDATE inbox SET received_at = received_at - interval '61 s'"))
        installation.look_again()
        assert put(installation, "2").json()["code"] == "inbox.full"


def test_one_that_sends_rubbish_among_good_ones_costs_itself_alone(
    installation: Installation,
) -> None:
    pieces = chunks.parquet_pieces(bodies.trace())
    rubbish = [
        ("stray", number, body[:40] + body[60:]) for number, (_, _, body) in enumerate(pieces)
    ]
    first = put(installation, *pieces[0])
    with concurrent.futures.ThreadPoolExecutor(8) as senders:
        tasks = [senders.submit(put, installation, *one) for one in [*pieces[1:], *rubbish]]
        assert {task.result().status_code for task in tasks} == {202}
    assert seal(installation).status_code == 202
    installation.analyze_all()
    found = chunks.detail(installation, first)
    assert (found["state"], found["operations"]) == ("analyzed", len(bodies.trace()))
    assert found["intake"]["refused_chunks"] == len(rubbish)
    assert {one["producer"] for one in found["intake"]["refused"]} == {"stray"}


def test_the_same_chunk_from_two_hosts_with_other_bytes_is_one_of_them(
    installation: Installation,
) -> None:
    first = put(installation, "0")
    with concurrent.futures.ThreadPoolExecutor(2) as senders:
        bodies_of_two = [chunks.rank_body(1), chunks.rank_body(2)]
        tasks = [senders.submit(put, installation, "host", 0, body) for body in bodies_of_two]
        answers = sorted(task.result().status_code for task in tasks)
    assert answers == [202, 409]
    installation.absorb_all()
    assert chunks.detail(installation, first)["intake"]["chunks"] == 2


def test_an_inbox_whose_disk_is_full_says_so_and_takes_the_chunk_once_there_is_room(
    installation: Installation,
) -> None:
    first = put(installation, "0")
    with installation.container.engine.begin() as connection:
        # PostgreSQL's error for a full disk, or an exhausted quota of its account.
        connection.execute(text(_FULL))
    full = put(installation, "1")
    assert (full.status_code, full.json()["code"]) == (507, "storage.full")
    assert installation.rows()["inbox"] == 0
    with installation.container.engine.begin() as connection:
        connection.execute(text("DROP TRIGGER full_disk ON inbox"))
    assert put(installation, "1").status_code == 202
    installation.absorb_all()
    found = chunks.detail(installation, first)["intake"]
    assert (found["chunks"], found["refused_chunks"]) == (2, 0)


def test_waiting_chunks_are_deleted_with_their_session(installation: Installation) -> None:
    first = put(installation, "0")
    put(installation, "1")
    session = first.json()["session"]
    with installation.container.engine.begin() as connection:
        connection.execute(text(f"DELETE FROM session WHERE id = '{session}'"))  # noqa: S608
    assert installation.rows()["inbox"] == 0
    installation.absorb_all()
