"""The page of a hang, its files, and the list on its job's page."""

from __future__ import annotations

import csv
import io
import time
import zipfile
from typing import TYPE_CHECKING

import pytest

from app.sessions.models.tables import Session
from tests.support.hanging import Hanging, archived, pickled, stack_dump
from tests.support.sessions import small_trace, store

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container

WORLD = [(0, 1, 2, 3)]


def files(*, ago_s: float = 60) -> bytes:
    hanging = Hanging(
        4, [WORLD, WORLD], host_stops={2: 1}, begin_ns=time.time_ns() - int(ago_s * 1e9)
    )
    found = {f"_dump_{rank}": pickled(dump) for rank, dump in hanging.dumps().items()}
    return archived(found | {"stack_2.json": stack_dump(("<b>collate</b>", "packing.py", 212))})


@pytest.fixture
def hang(client: httpx.Client) -> str:
    answer = client.post("/api/v1/jobs/moe/hangs", content=files())
    assert answer.status_code == 201, answer.text
    return f"/hangs/{answer.json()['hang']}"


def test_the_page_says_who_why_and_what_to_do(client: httpx.Client, hang: str) -> None:
    page = client.get(hang).text
    assert "3 ranks wait for rank 2, which never entered nccl:_all_gather_base 2" in page
    assert "4 an hour" in page
    assert "&lt;b&gt;collate&lt;/b&gt;" in page
    assert "<b>collate</b>" not in page
    assert client.get(f"{hang}0").status_code == 404


def test_files_have_what_the_page_shows(client: httpx.Client, hang: str) -> None:
    rows = list(csv.DictReader(client.get(f"{hang}/ranks.csv").text.splitlines()))
    assert [row["culprit"] for row in rows] == ["", "", "never_entered", ""]
    (link,) = csv.DictReader(client.get(f"{hang}/chain.csv").text.splitlines())
    assert (link["waiting"], link["waits_for"]) == ("0-1, 3", "2")
    (frame,) = csv.DictReader(client.get(f"{hang}/stacks.csv").text.splitlines())
    assert (frame["file"], frame["line"]) == ("packing.py", "212")
    assert client.get(f"{hang}/other.csv").status_code == 404

    pack = zipfile.ZipFile(io.BytesIO(client.get(f"{hang}/evidence.zip").content))
    assert sorted(pack.namelist()) == [
        "chain.csv", "hang.json", "hang.txt", "ranks.csv", "stacks.csv",
    ]  # fmt: skip
    assert "rank 2 has nothing pending" in pack.read("hang.txt").decode()


def test_a_host_whose_name_is_a_guess_gets_no_command(
    container: Container, client: httpx.Client
) -> None:
    hanging = Hanging(4, [WORLD, WORLD], device_stops={2: 1}, begin_ns=time.time_ns() - 10**11)
    content = archived({f"_dump_{rank}": pickled(one) for rank, one in hanging.dumps().items()})
    session = store(container, small_trace(), job="moe").session
    answer = client.post("/api/v1/jobs/moe/hangs", content=content).json()
    assert answer["kind"] == "device_stuck"
    assert "kubectl cordon" in client.get(f"/hangs/{answer['hang']}").text
    with container.uow() as tx:
        stored = tx.session.get_one(Session, session)
        hosts = stored.meta["hosts"].values()
        stored.meta = {**stored.meta, "guessed_hosts": dict.fromkeys(hosts, "hostname")}
    page = client.get(f"/hangs/{answer['hang']}").text
    assert "rank 2" in page
    assert "kubectl" not in page
    assert "scontrol" not in page


def test_a_jobs_page_lists_its_hangs(client: httpx.Client, container: Container, hang: str) -> None:
    # The page of a job without sessions redirects to its hang.
    assert client.get("/jobs/moe", follow_redirects=True).url.path == hang
    store(container, small_trace(), job="moe")
    page = client.get("/jobs/moe").text
    assert f'href="{hang}"' in page
    (row,) = csv.DictReader(client.get("/jobs/moe/hangs.csv").text.splitlines())
    assert (row["kind"], row["ranks"]) == ("never_entered", "4")
    # GPU-hours are counted from a minute before the files arrived.
    assert 4 / 60 < float(row["gpu_hours"]) < 1


def test_files_of_another_day_tell_no_cost(client: httpx.Client) -> None:
    answer = client.post("/api/v1/jobs/old/hangs", content=files(ago_s=3 * 86_400)).json()
    page = client.get(f"/hangs/{answer['hang']}").text
    assert "Recorded" in page
    assert "how long is not known" in page
