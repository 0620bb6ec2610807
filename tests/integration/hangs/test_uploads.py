"""A large archive of a hang is stored, and read by a worker."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import func, select

from app.access.moves import move_job
from app.access.projects import create_project
from app.errors import LostClaimError, NotFoundError
from app.hangs.models import HangUpload, HangUploadPart, StoredHang
from app.hangs.receive import MOST_AT_ONCE_BYTES
from app.hangs.uploads import read_upload
from app.platform.database.task_runs import READ_HANG, TaskRun
from app.platform.tasks.execute import execute
from app.platform.tasks.runs import LeaseKeeper, claim, give_back
from tests.support.hanging import archived, large_archive

if TYPE_CHECKING:
    import httpx

    from app.platform.container import Container
    from app.platform.database.columns import Base


def send(client: httpx.Client, body: bytes) -> httpx.Response:
    return client.post("/api/v1/jobs/moe/hangs", content=body)


def queued(container: Container) -> uuid.UUID:
    with container.reading() as tx:
        run: uuid.UUID = tx.session.execute(
            select(TaskRun.id).where(TaskRun.kind == READ_HANG, TaskRun.state == "queued")
        ).scalar_one()
    return run


def count(container: Container, table: type[Base]) -> int:
    with container.reading() as tx:
        return tx.session.execute(select(func.count()).select_from(table)).scalar_one()


def test_a_large_archive_is_kept_and_becomes_a_hang_when_a_worker_has_read_it(
    client: httpx.Client, container: Container
) -> None:
    body = large_archive()
    answer = send(client, body)
    assert answer.status_code == 202, answer.text
    address = answer.headers["location"]
    assert client.get(address).json() == answer.json()
    assert (answer.json()["state"], answer.json()["hang"]) == ("queued", None)
    # The same archive again is the same upload.
    again = send(client, body)
    assert (again.status_code, again.json()["upload"]) == (202, answer.json()["upload"])
    assert count(container, StoredHang) == 0

    assert execute(container, LeaseKeeper(container), queued(container))
    read = client.get(address).json()
    assert (read["state"], read["not_read"]) == ("read", ["README.md"])
    assert read["url"].endswith(f"/hangs/{read['hang']}")
    hang = client.get(f"/api/v1/hangs/{read['hang']}").json()
    assert hang["hang"]["sentence"].startswith("3 ranks wait for rank 2.")
    assert count(container, HangUploadPart) == 0
    later = send(client, body)
    assert (later.status_code, later.json()["hang"]) == (200, read["hang"])


def test_read_twice_it_is_one_hang(client: httpx.Client, container: Container) -> None:
    assert send(client, large_archive()).status_code == 202
    taken = claim(container, queued(container))
    assert taken is not None
    read_upload(container, taken)
    with pytest.raises(NotFoundError, match="is gone"):
        read_upload(container, taken)
    assert (count(container, StoredHang), count(container, HangUpload)) == (1, 1)


def test_it_is_read_in_the_project_that_its_job_moves_to_while_it_waits_or_is_read(
    client: httpx.Client, container: Container
) -> None:
    other = container.within(create_project(container.everywhere(), "other").id)
    upload = uuid.UUID(send(client, large_archive()).json()["upload"])
    run = queued(container)
    move_job(container, "moe", "other")
    held = claim(container, run)
    assert held is not None
    assert held.project_id == other.project_id
    move_job(other, "moe", "default")
    # The first worker has lost its claim, and another one reads the archive.
    with pytest.raises(LostClaimError):
        read_upload(other, held)
    assert give_back(container, held)
    assert execute(container, LeaseKeeper(container), run)
    assert client.get(f"/api/v1/hang-uploads/{upload}").json()["state"] == "read"
    assert (count(other, StoredHang), count(container, StoredHang)) == (0, 1)
    assert count(other, TaskRun) == 0


def test_an_archive_that_is_of_no_hang_is_refused_with_its_reason_and_may_come_again(
    client: httpx.Client, container: Container
) -> None:
    body = archived({"notes": b" " * (MOST_AT_ONCE_BYTES + 1)})
    first = send(client, body).json()
    assert execute(container, LeaseKeeper(container), queued(container))
    told = client.get(f"/api/v1/hang-uploads/{first['upload']}").json()
    assert (told["state"], told["reason_code"], told["hang"]) == ("refused", "hang.no_dumps", None)
    assert (count(container, StoredHang), count(container, HangUploadPart)) == (0, 0)

    second = send(client, body)
    assert second.status_code == 202
    assert second.json()["upload"] != first["upload"]


def test_one_that_is_not_there_is_not_found(client: httpx.Client) -> None:
    missing = "00000000-0000-0000-0000-000000000000"
    assert client.get(f"/api/v1/hang-uploads/{missing}").status_code == 404
