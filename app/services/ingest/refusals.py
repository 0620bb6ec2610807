"""Bodies that were refused, counted by day and reason, so that it is noticed."""

from __future__ import annotations

from datetime import UTC
from typing import TYPE_CHECKING, Final

from sqlalchemy.dialects.postgresql import insert

from app.db.models.chunks import IngestRefusal

if TYPE_CHECKING:
    from app.db.unit_of_work import UnitOfWork
    from app.services.container import Container

# Of the job's name: it is what the sender wrote, and may be anything.
MAX_CHARS: Final = 200


def count_refused_body(container: Container, job: str, size: int, code: str) -> None:
    """Count a body of `size` bytes that was refused for good."""
    with container.uow() as tx:
        count_refusal(tx, job, size, code)


def count_refusal(tx: UnitOfWork, job: str, size: int, code: str) -> None:
    """Count a refused body in another transaction."""
    tx.session.execute(
        insert(IngestRefusal)
        .values(
            day=tx.now.astimezone(UTC).date(),
            code=code,
            bodies=1,
            bytes=size,
            last_at=tx.now,
            last_job=job[:MAX_CHARS],
        )
        .on_conflict_do_update(
            index_elements=["project_id", "day", "code"],
            set_={
                "bodies": IngestRefusal.bodies + 1,
                "bytes": IngestRefusal.bytes + size,
                "last_at": tx.now,
                "last_job": job[:MAX_CHARS],
            },
        )
    )
