"""Files of a hanging job are analyzed, and the verdict is stored."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from sqlalchemy import select, update

from app.hangs.models import StoredHang, StoredHangFile
from app.retention.models import Keep, RetentionRules
from app.retention.rules import keep_to_rules, set_rules, uses_of
from tests.support.hanging import Hanging, archived, as_json, pickled, ras, stack_dump
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

WORLD = [(0, 1, 2, 3)]
HANGING = Hanging(4, [WORLD, [(0, 1), (2, 3)], WORLD], host_stops={2: 2})
DUMPS = {f"dumps/_dump_{rank}": pickled(dump) for rank, dump in HANGING.dumps().items()}
STACK = stack_dump(("collate", "data/packing.py", 212), ("train", "train.py", 7))


def post(client: httpx.Client, body: bytes, job: str = "moe", **query: str) -> httpx.Response:
    return client.post(f"/api/v1/jobs/{job}/hangs", content=body, params=query)


def stored(container: Container, table: type[Any] = StoredHang) -> int:
    with container.everywhere().reading() as tx:
        return len(tx.session.execute(select(table)).scalars().all())


def test_an_archive_becomes_one_hang_however_often_it_comes(
    client: httpx.Client, container: Container
) -> None:
    files = {**DUMPS, "dumps/stack_2.json": STACK, "README.md": b"# Dumps"}
    answer = post(client, archived(files))
    assert answer.status_code == 201, answer.text
    receipt = answer.json()
    assert receipt["sentence"].startswith("3 ranks wait for rank 2.")
    assert (receipt["kind"], receipt["not_read"]) == ("never_entered", ["README.md"])
    again = post(client, archived(files))
    assert (again.status_code, again.json()["hang"]) == (200, receipt["hang"])
    assert (stored(container), stored(container, StoredHangFile)) == (1, 5)

    (listed,) = client.get("/api/v1/jobs/moe/hangs").json()["hangs"]
    assert (listed["id"], listed["ranks"], listed["waiting"]) == (receipt["hang"], 4, 3)
    one = client.get(answer.headers["location"]).json()
    (culprit,) = one["document"]["verdict"]["culprits"]
    assert (culprit["rank"], culprit["stack"][0]["line"]) == (2, 212)
    assert [box["ranks"] for box in one["document"]["boxes"]] == [[2], [0, 1, 3]]


def test_metrics_hold_nothing_of_stacks(client: httpx.Client) -> None:
    assert post(client, archived({**DUMPS, "dumps/stack_2.json": STACK})).status_code == 201
    text = client.get("/metrics").text
    assert "paceline_" in text
    for word in ("collate", "packing", "train.py", "_dump", "reduce_scatter"):
        assert word not in text


def test_files_that_come_one_by_one_are_of_one_hang(
    client: httpx.Client, container: Container
) -> None:
    first = post(client, pickled(HANGING.dumps()[0]), rank="0")
    assert (first.status_code, first.json()["kind"]) == (201, "silent")
    for rank in (1, 2, 3):
        later = post(client, as_json(HANGING.dumps()[rank]), name=f"_dump_{rank}")
        assert (later.status_code, later.json()["hang"]) == (200, first.json()["hang"])
    assert (later.json()["kind"], later.json()["confidence"]) == ("never_entered", 0.95)
    # Another file of the same rank replaces its first one.
    assert post(client, pickled(HANGING.dumps()[3]), rank="3").json() == later.json()
    with container.everywhere().uow() as tx:
        ago = StoredHang.changed_at - timedelta(hours=1)
        tx.session.execute(update(StoredHang).values(changed_at=ago))
    assert post(client, pickled(HANGING.dumps()[0]), rank="0").status_code == 201


def test_hosts_are_those_of_the_jobs_latest_session(
    client: httpx.Client, container: Container
) -> None:
    hosts = {0: "node-1", 1: "node-1", 2: "node-2", 3: "node-2"}
    trace = small_trace()
    store(container, replace(trace, meta=replace(trace.meta, hosts=hosts)), job="moe")
    answer = post(client, archived({name: DUMPS[name] for name in list(DUMPS)[:2]}))
    one = client.get(answer.headers["location"]).json()
    # RAS gives the hosts of ranks without a file, too.
    assert {c["rank"]: c["host"] for c in one["document"]["verdict"]["culprits"]} == {
        2: "node-2", 3: "node-2",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("body", "query", "refused"),
    [
        (b"\x80\x02cos\nsystem\n.", {"rank": "0"}, (422, "hang.invalid_pickle")),
        (b"{", {"rank": "0"}, (422, "hang.invalid_dump")),
        (DUMPS["dumps/_dump_0"], {}, (422, "hang.no_rank")),
        (b"# Dumps", {}, (415, "hang.unknown_file")),
        (archived({"README.md": b"# Dumps"}), {}, (422, "hang.no_dumps")),
        (archived({"a_0": DUMPS["dumps/_dump_0"], "b_0": DUMPS["dumps/_dump_0"]}), {},
         (422, "hang.rank_twice")),
    ],
)  # fmt: skip
def test_an_unreadable_file_is_refused_and_nothing_is_stored(
    client: httpx.Client,
    container: Container,
    body: bytes,
    query: dict[str, str],
    refused: tuple[int, str],
) -> None:
    answer = post(client, body, **query)
    assert (answer.status_code, answer.json()["code"]) == refused, answer.text
    assert stored(container) == 0


def test_a_hostile_pickle_is_refused_by_file_opcode_and_offset(client: httpx.Client) -> None:
    answer = post(client, archived({**DUMPS, "_dump_4": b"\x80\x02cos\nsystem\n."})).json()
    assert "_dump_4: The opcode GLOBAL at byte 2 is refused" in answer["detail"]
    assert answer["faults"][0]["row"] == 2


def test_the_output_of_ras_alone_makes_a_hang(client: httpx.Client) -> None:
    answer = post(client, as_json(ras(HANGING)))
    assert answer.status_code == 201, answer.text
    assert answer.json()["kind"] == "never_entered"


def test_retention_takes_hangs_with_their_files(client: httpx.Client, container: Container) -> None:
    post(client, archived(DUMPS))
    with container.reading() as tx:
        use = uses_of(tx)["hangs"]
    assert use.count == 1
    assert use.bytes > 0
    set_rules(container, RetentionRules(hangs=Keep(days=30)))
    assert keep_to_rules(container) == 0
    with container.everywhere().uow() as tx:
        ago = StoredHang.created_at - timedelta(days=31)
        tx.session.execute(update(StoredHang).values(created_at=ago))
    set_rules(container, RetentionRules(hangs=Keep(days=29)))
    assert keep_to_rules(container) == 1
    assert (stored(container), stored(container, StoredHangFile)) == (0, 0)
