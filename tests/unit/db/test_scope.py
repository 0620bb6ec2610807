"""Which tables have rows of projects."""

from __future__ import annotations

from sqlalchemy.orm import instrumentation

from app.db import scope
from app.db.models.access import Project
from app.db.models.base import Base, OfProject
from app.db.models.hosts import HostRepair
from app.db.models.sessions import Job


def test_tables_of_projects_are_told_while_another_thread_imports_a_class() -> None:
    class Half(OfProject):
        """As far as the import of a class has come that is not mapped yet."""

    scope._is_of_project.cache_clear()
    instrumentation.register_class(Half, registry=Base.registry)
    try:
        assert scope._is_of_project(Job.__table__)
        assert scope._is_of_project(HostRepair.__table__)
        assert not scope._is_of_project(Project.__table__)
    finally:
        instrumentation.unregister_class(Half)  # type: ignore[no-untyped-call]
