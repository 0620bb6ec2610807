"""Table of what each project has used of its quotas."""

from __future__ import annotations

from datetime import datetime

from sqlalchemy import BigInteger
from sqlalchemy.orm import Mapped, mapped_column

from app.db.models.base import Base, OfProject, in_project


class ProjectUsage(OfProject, Base):
    """Running sums of one project; a project without a row has used nothing.

    Whoever stores something of a project adds to its row last in its transaction: from then on
    others of the project wait for the commit, so a quota is kept exactly.
    """

    __tablename__ = "project_usage"
    __table_args__ = (in_project(),)

    project_id: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # the hour that `hour_sessions` counts
    hour: Mapped[datetime]
    hour_sessions: Mapped[int]
    # of all its sessions that are there
    bytes: Mapped[int] = mapped_column(BigInteger)
    operations: Mapped[int] = mapped_column(BigInteger)
