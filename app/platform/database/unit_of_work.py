"""Transactions: read-only snapshots, and units of work that publish messages after the commit."""

from __future__ import annotations

import contextlib
import uuid
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import TracebackType
from typing import Any, Final, Generic, Self, TypeVarTuple, cast

from sqlalchemy import (
    BindParameter,
    ColumnElement,
    Dialect,
    Engine,
    Select,
    Text,
    bindparam,
    func,
    select,
    text,
)
from sqlalchemy import cast as sqlalchemy_cast
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import InstrumentedAttribute, with_loader_criteria
from sqlalchemy.sql.compiler import SQLCompiler
from sqlalchemy.sql.dml import Insert, ReturningInsert

from app.analysis.generation import WRITES
from app.platform.database.columns import OfProject
from app.platform.database.states import TaskState
from app.platform.database.task_runs import TaskRun
from app.platform.database.tenant_scope import (
    Scope,
    ScopedSession,
    UnscopedError,
    driver_connection,
    refuse_bare_tables,
)
from app.platform.object_store import Objects
from app.platform.telemetry import current

# For each execution of a statement SQLAlchemy confines it to its project, hashes and adapts it,
# which takes up to ten times as long as a small statement takes in the database. Prepared
# statements are confined and compiled once, at their first execution; afterwards only their values
# go to the driver.


Ts = TypeVarTuple("Ts")

PROJECT: Final = "project_id"


class Prepared(Generic[*Ts]):
    """A statement of mapped classes that is compiled once, with a `bindparam` for each value.

    The statement reads and writes rows of one project, like all statements of a transaction. Only a
    subquery of an insert is not confined: it selects by the id of a row that another statement has
    read.

    Parameters
    ----------
    statement : Select or Insert
        An insert must return rows. It sets the columns that it names itself, and those of the
        values at its first execution.

    Raises
    ------
    UnscopedError
        If the statement names a table instead of its mapped class.
    """

    def __init__(self, statement: Select[*Ts] | ReturningInsert[*Ts]) -> None:
        refuse_bare_tables(statement, about_classes=True)
        own: BindParameter[int] = bindparam(PROJECT)
        self._statement: Select[*Ts] | ReturningInsert[*Ts]
        if isinstance(statement, Insert):
            self._statement = statement.values({PROJECT: own})
        else:
            self._statement = statement.options(
                with_loader_criteria(
                    OfProject, lambda table: table.project_id == own, include_aliases=True
                )
            )
        self._compiled: _Compiled | None = None

    def rows(self, session: ScopedSession, **values: object) -> list[tuple[*Ts]]:
        """Execute the statement and return its rows.

        Parameters
        ----------
        session : ScopedSession
            Session of the transaction.
        values
            The same names in every call; also `project_id` if the transaction is of all projects.

        Raises
        ------
        UnscopedError
            If the values name no project, or another project than the transaction's.
        """
        scope = session.project_id
        project_id = values.setdefault(PROJECT, scope)
        if project_id is None or scope not in {None, project_id}:
            raise UnscopedError(f"a statement of project {project_id} in the scope of {scope}")
        compiled = self._compiled
        if compiled is None:
            # Two threads may both compile the statement; the results are equal.
            dialect = session.get_bind().dialect
            compiled = self._compiled = _Compiled.of(self._statement, dialect, values)
        result = driver_connection(session).execute(
            compiled.text, compiled.given(values), prepare=True
        )
        return [cast("tuple[*Ts]", compiled.taken(row)) for row in result.fetchall()]


@dataclass(frozen=True, slots=True)
class _Compiled:
    statement: SQLCompiler
    text: str
    # Conversions of parameters by name, and of returned values by column number, of those values
    # that need a conversion.
    to_driver: Mapping[str, Callable[[Any], object]]
    from_driver: Mapping[int, Callable[[Any], object]]

    @classmethod
    def of(
        cls,
        statement: Select[*Ts] | ReturningInsert[*Ts],
        dialect: Dialect,
        values: Mapping[str, object],
    ) -> _Compiled:
        columns: list[str] | None = None
        if isinstance(statement, Insert):
            # The other values are parameters of a subquery in the insert.
            columns = [name for name in values if name in statement.table.columns]
        compiled = statement.compile(dialect=dialect, column_keys=columns)
        to_driver = {
            name: bound.type.dialect_impl(dialect).bind_processor(dialect)
            for bound, name in compiled.bind_names.items()
        }
        from_driver = {
            at: column.type.dialect_impl(dialect).result_processor(dialect, None)
            for at, column in enumerate(statement.exported_columns)
        }
        return cls(
            compiled,
            compiled.string,
            {name: convert for name, convert in to_driver.items() if convert is not None},
            {at: convert for at, convert in from_driver.items() if convert is not None},
        )

    def given(self, values: dict[str, object]) -> dict[str, Any]:
        given = dict(self.statement.construct_params(values))
        for name, convert in self.to_driver.items():
            given[name] = convert(given[name])
        return given

    def taken(self, row: tuple[Any, ...]) -> tuple[Any, ...]:
        if not self.from_driver:
            return row
        taken = list(row)
        for at, convert in self.from_driver.items():
            taken[at] = convert(taken[at])
        return tuple(taken)


# The channel of PostgreSQL's NOTIFY that carries the id of a session whose state changed.
SESSION_CHANNEL: Final = "paceline_session"

# Attempts to insert a task run. The open row that made an insert do nothing may be finished before
# the lookup; the next insert then succeeds. Losing that race more than a few times in a row means a
# bug, which an endless loop would hide.
ENQUEUE_TRIES: Final = 5

_QUEUE: Final = Prepared(
    insert(TaskRun)
    .values(
        id=bindparam("id"),
        kind=bindparam("kind"),
        subject_id=bindparam("subject_id"),
        state=TaskState.QUEUED,
        attempt=0,
        needs=WRITES,
        traceparent=bindparam("traceparent"),
    )
    .on_conflict_do_nothing(
        index_elements=["kind", "subject_id"],
        index_where=text("state IN ('queued', 'running')"),
    )
    .returning(TaskRun.id)
)


def notification(session_id: InstrumentedAttribute[uuid.UUID]) -> ColumnElement[None]:
    """Return an SQL expression that notifies listeners of the session that a statement writes."""
    return func.pg_notify(SESSION_CHANNEL, sqlalchemy_cast(session_id, Text))


Publish = Callable[[uuid.UUID, str], None]


class Reads:
    """Interface of a transaction for functions that only read the database.

    Parameters
    ----------
    session : ScopedSession
        SQLAlchemy session; its transaction is open, or begins with the first statement.
    scope : Scope
        Scope of the session: the projects whose rows it reads.
    objects : Objects, optional
        Store of large blobs; without it the database holds all blobs.
    now : datetime, optional
        Time of the transaction, if it is not the database's time: for a history that is written
        later.
    """

    def __init__(
        self,
        session: ScopedSession,
        scope: Scope,
        objects: Objects | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        self.session = session
        self.scope = scope
        self.objects = objects
        self._now = now

    @property
    def now(self) -> datetime:
        """Return the start of this transaction by the database's clock, read once."""
        if self._now is None:
            self._now = self.session.execute(select(func.now())).scalar_one()
        return self._now

    def is_at(self, now: datetime) -> None:
        """Set the transaction's time, which another statement has read from the database."""
        if self._now is None:
            self._now = now


@contextlib.contextmanager
def reading(
    engine: Engine, scope: Scope, objects: Objects | None = None, *, now: datetime | None = None
) -> Iterator[Reads]:
    """Open a read-only transaction on one snapshot.

    Loaded objects stay readable after the transaction. Compute and render outside of the
    transaction, since it holds one of the pool's connections.

    Parameters
    ----------
    objects, now
        As for `Reads`.

    Raises
    ------
    SQLAlchemyError
        If the database does not answer.
    """
    with ScopedSession(scope, bind=engine, autoflush=False) as session:
        session.connection(
            execution_options={"isolation_level": "REPEATABLE READ", "postgresql_readonly": True}
        )
        yield Reads(session, scope, objects, now=now)


class UnitOfWork(Reads):
    """A context manager of one transaction that may write.

    Within the context it has `session` and `now`; a clean exit commits, an exception rolls back.
    The ids of enqueued tasks are passed to `publish` only after the commit: a worker would discard
    a message for a row that does not exist yet.

    Parameters
    ----------
    engine : Engine
        Engine that provides the connection.
    publish : callable
        Takes the id of a task run and its kind; must not block and must not fail.
    scope : Scope
        Projects whose rows the transaction reads and writes.
    objects, now
        As for `Reads`.
    """

    def __init__(
        self,
        engine: Engine,
        publish: Publish,
        scope: Scope,
        objects: Objects | None = None,
        *,
        now: datetime | None = None,
    ) -> None:
        # Rows stay readable after the commit: services return them as values.
        session = ScopedSession(scope, bind=engine, expire_on_commit=False)
        super().__init__(session, scope, objects, now=now)
        self._publish = publish
        self._to_publish: dict[uuid.UUID, str] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        with self.session:
            if kind is not None:
                return
            self.session.commit()
        for run_id, task_kind in self._to_publish.items():
            self._publish(run_id, task_kind)

    def enqueue(
        self,
        kind: str,
        subject_id: uuid.UUID,
        project_id: int | None = None,
        *,
        caused_by: str | None = None,
    ) -> uuid.UUID:
        """Insert a queued task run in this transaction; publish its id after the commit.

        Parameters
        ----------
        kind : str
            Kind of the task: a name of `app.platform.database.task_runs.TASK_KINDS`.
        project_id : int, optional
            Project of the subject, if the transaction is of all projects.
        caused_by : str, optional
            The ``traceparent`` of the span that causes the task; default: the running span.

        Returns
        -------
        UUID
            Id of the task run: a new one, or the open one of the same kind and subject.
        """
        owner = {} if project_id is None else {PROJECT: project_id}
        cause = current() if caused_by is None else caused_by
        for _ in range(ENQUEUE_TRIES):
            made = _QUEUE.rows(
                self.session,
                id=uuid.uuid4(),
                kind=kind,
                subject_id=subject_id,
                traceparent=cause,
                **owner,
            )
            run_id = made[0][0] if made else self._open_run(kind, subject_id)
            if run_id is not None:
                self.publish_after_commit(run_id, kind)
                return run_id
        raise RuntimeError(f"no task run of {kind} for {subject_id} could be made or found")

    def _open_run(self, kind: str, subject_id: uuid.UUID) -> uuid.UUID | None:
        return self.session.execute(
            select(TaskRun.id).where(
                TaskRun.kind == kind,
                TaskRun.subject_id == subject_id,
                TaskRun.state.in_(TaskState.OPEN),
            )
        ).scalar()

    def publish_after_commit(self, run_id: uuid.UUID, kind: str) -> None:
        """Publish a task run's id to the workers once this transaction has committed."""
        self._to_publish[run_id] = kind

    def notify_session(self, session_id: uuid.UUID) -> None:
        """Notify listeners, on commit, that a session's state changed.

        Commits that notify take one lock of the whole database, so that a frequent transaction (a
        chunk of a trace) must not call this function.
        """
        self.session.connection().exec_driver_sql(
            "SELECT pg_notify(%s, %s)", (SESSION_CHANNEL, str(session_id))
        )
