"""Table of the worker processes of this installation."""

from __future__ import annotations

import uuid
from datetime import datetime

from sqlalchemy import Uuid, text
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base


class WorkerHeartbeat(Base):
    """A living worker process; /readyz and the dashboard read it."""

    __tablename__ = "worker_heartbeat"

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    host: Mapped[str]
    pid: Mapped[int]
    queues: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    seen_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
