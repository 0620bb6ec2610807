"""GPUs that earlier sessions named by their UUIDs are known where they were."""

from __future__ import annotations

from datetime import timedelta
from typing import TYPE_CHECKING

import pytest
from sqlalchemy import select, text

from app.hosts.models import GpuPlace
from app.platform.database import migrate
from tests.integration.hosts.build import HOUR, reading, session

if TYPE_CHECKING:
    from app.platform.container import Container

UUID = "GPU-5a3f1c2e-0000-4000-8000-00000000000b"


def places(container: Container) -> list[tuple[str, str, bool, timedelta]]:
    with container.reading() as tx:
        rows = tx.session.execute(select(GpuPlace).order_by(GpuPlace.gpu, GpuPlace.host)).scalars()
        return [(row.gpu, row.host, row.guessed, row.last_seen - row.first_seen) for row in rows]


def test_places_of_stored_readings_are_filled(container: Container) -> None:
    for hours, host in ((9, "node-7"), (5, "node-7"), (2, "node-8")):
        session(container, {host: reading(1.2, gpu=UUID)}, ago=hours * HOUR)
    session(container, {"node-8": reading(gpu="MIG-5a3f")}, ago=HOUR)
    assert places(container) == []
    with container.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0010'"))
    migrate.upgrade(container.engine.url, "0011")
    found = places(container)
    assert [place[:3] for place in found] == [
        (UUID, "node-7", False),
        (UUID, "node-8", False),
        ("MIG-5a3f", "node-8", False),
    ]
    assert found[0][3] == pytest.approx(4 * HOUR, abs=timedelta(minutes=1))
    # Filled again it says the same.
    with container.engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = '0010'"))
    migrate.upgrade(container.engine.url, "0011")
    assert places(container) == found
