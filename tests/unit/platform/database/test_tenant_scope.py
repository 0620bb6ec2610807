"""The tables that have rows of projects."""

from __future__ import annotations

from sqlalchemy.orm import instrumentation

from app.hosts.models import HostRepair
from app.jobs.models import Job
from app.platform.database import tenant_scope as scope
from app.platform.database.columns import Base, OfProject
from app.platform.database.projects import Project


def test_tables_of_projects_are_found_while_another_thread_imports_a_class() -> None:
    class Half(OfProject):
        """A class whose import has not finished, so that it is not mapped yet."""

    scope._is_of_project.cache_clear()
    instrumentation.register_class(Half, registry=Base.registry)
    try:
        assert scope._is_of_project(Job.__table__)
        assert scope._is_of_project(HostRepair.__table__)
        assert not scope._is_of_project(Project.__table__)
    finally:
        instrumentation.unregister_class(Half)  # type: ignore[no-untyped-call]
