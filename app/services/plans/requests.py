"""Plans that are asked for: checked, stored with the work that they cause, canceled."""

from __future__ import annotations

import hashlib
import json
import uuid
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, cast

from sqlalchemy import CursorResult, func, select, update
from sqlalchemy.dialects.postgresql import insert

from app.analysis.planning.spec.model import METHODS, OBJECTIVES, Spec
from app.analysis.planning.spec.parse import load_spec, parse_spec
from app.analysis.planning.spec.reading import Reader
from app.db.models.plans import Plan
from app.db.models.sessions import PLAN_TEMPLATE, TaskRun
from app.db.states import PlanState, TaskState
from app.errors import ConflictError, Fault, InvalidSpecError, NotFoundError

if TYPE_CHECKING:
    from app.services.container import Container

DEFAULT_TIME_LIMIT_S: Final = 60.0
# With the comparison, which gets as much again, and the last pass this stays below the limit of
# an analysis.
MOST_TIME_LIMIT_S: Final = 240.0
# Forward passes of one simulated iteration on one device each. More would not fit in memory.
MOST_COMPUTATIONS: Final = 2_000_000
# Floats hold every whole number below this.
EXACT_BELOW: Final = 2.0**53

_KEYS: Final = ("spec", "method", "objective", "time_limit_s", "name")


@dataclass(frozen=True, slots=True)
class PlanRequest:
    """A plan that can be asked for.

    Parameters
    ----------
    document : dict
        The specification as JSON types.
    spec : Spec
        The same, read.
    """

    document: dict[str, Any]
    spec: Spec
    method: str
    objective: str
    time_limit_s: float
    name: str | None


@dataclass(frozen=True, slots=True)
class Submitted:
    """The plan that a request became, or already was."""

    id: uuid.UUID
    state: PlanState
    created: bool


def read_request(document: object) -> PlanRequest:
    """Check a request.

    Parameters
    ----------
    document : object
        ``{"spec": …, "method": …, "objective": …, "time_limit_s": …, "name": …}``; the
        specification is a mapping, or a text of YAML or JSON.

    Raises
    ------
    InvalidSpecError
        With every fault and its path; paths within the specification begin there.
    """
    reader = Reader()
    top = reader.mapping("", document, _KEYS, ("spec",))
    if top is None:
        raise _invalid(reader.faults)
    method = reader.text("method", top.get("method", METHODS[0]), METHODS)
    objective = reader.text("objective", top.get("objective", OBJECTIVES[0]), OBJECTIVES)
    limit_s = reader.number(
        "time_limit_s",
        top.get("time_limit_s", DEFAULT_TIME_LIMIT_S),
        high=MOST_TIME_LIMIT_S,
        above=True,
    )
    name = reader.text("name", top["name"]) if top.get("name") else None
    faults = list(reader.faults)
    if "spec" not in top:
        raise _invalid(faults)
    given = top["spec"]
    if isinstance(given, str):
        given = load_spec(given)
    try:
        spec = parse_spec(given)
    except InvalidSpecError as error:
        raise _invalid([*faults, *error.faults]) from error
    faults += _limits(spec, objective)
    if faults or method is None or objective is None or limit_s is None:
        raise _invalid(faults)
    plain = cast("dict[str, Any]", _as_json(given))
    return PlanRequest(plain, spec, method, objective, limit_s, name)


def submit_plan(container: Container, request: PlanRequest) -> Submitted:
    """Store a plan with the work that it causes.

    The same question is the same plan, also when it is asked twice at the same time. One that was
    canceled or that failed is planned again.

    Returns
    -------
    Submitted
        Only after the commit: what it says survives a crash.
    """
    content = _content_sha256(request)
    with container.uow() as tx:
        made = tx.session.execute(
            insert(Plan)
            .values(
                id=uuid.uuid4(),
                content_sha256=content,
                name=request.name,
                method=request.method,
                objective=request.objective,
                time_limit_s=request.time_limit_s,
                spec=request.document,
                layers=len(request.spec.layers),
                gpus=request.spec.gpus,
                state=PlanState.QUEUED,
            )
            .on_conflict_do_nothing(index_elements=[Plan.content_sha256])
            .returning(Plan.id)
        ).scalar()
        again = (
            made
            or tx.session.execute(
                update(Plan)
                .where(Plan.content_sha256 == content, Plan.state.in_(PlanState.REPEATABLE))
                .values(
                    state=PlanState.QUEUED,
                    state_changed_at=func.now(),
                    gap=None,
                    reason_code=None,
                    reason=None,
                    reason_detail=None,
                )
                .returning(Plan.id)
            ).scalar()
        )
        if again is None:
            known = tx.session.execute(
                select(Plan.id, Plan.state).where(Plan.content_sha256 == content)
            ).one()
            return Submitted(known.id, known.state, created=False)
        tx.enqueue(PLAN_TEMPLATE, again)
    return Submitted(again, PlanState.QUEUED, created=True)


def cancel_plan(container: Container, plan_id: uuid.UUID) -> None:
    """End a plan that waits or is being planned; to cancel it twice is harmless.

    The work ends here, in the database: what a worker still computes cannot be stored.

    Raises
    ------
    NotFoundError
        If there is no such plan.
    ConflictError
        If it has ended otherwise: ``plan.ended``.
    """
    with container.uow() as tx:
        ended = tx.session.execute(
            update(TaskRun)
            .where(
                TaskRun.kind == PLAN_TEMPLATE,
                TaskRun.subject_id == plan_id,
                TaskRun.state.in_(TaskState.OPEN),
            )
            .values(state=TaskState.DONE, claim_token=None, lease_until=None, finished_at=tx.now)
        )
        if cast("CursorResult[Any]", ended).rowcount:
            tx.session.execute(
                update(Plan)
                .where(Plan.id == plan_id)
                .values(state=PlanState.CANCELED, state_changed_at=func.now(), gap=None)
            )
            return
        state = tx.session.execute(select(Plan.state).where(Plan.id == plan_id)).scalar()
    if state is None:
        raise NotFoundError(f"There is no plan {plan_id}.")
    if state is not PlanState.CANCELED:
        raise ConflictError(f"The plan is {state}: there is nothing to cancel.", code="plan.ended")


def _limits(spec: Spec, objective: str | None) -> list[Fault]:
    """Return the faults of a specification that is sound in itself."""
    faults = []
    most_stages = min(spec.gpus, len(spec.layers))
    if objective == "t_oobleck" and spec.microbatches < most_stages:
        message = f"t_oobleck needs as many microbatches as there can be stages, {most_stages}"
        faults.append(Fault("out_of_range", message, column="microbatches"))
    most = MOST_COMPUTATIONS // most_stages
    if spec.microbatches > most:
        message = f"with {most_stages} stages at most {most} microbatches can be simulated"
        faults.append(Fault("too_large", message, column="microbatches"))
    return faults


def _invalid(faults: list[Fault]) -> InvalidSpecError:
    count = len(faults)
    return InvalidSpecError(
        f"The request has {count} fault{'s' if count > 1 else ''}: {faults[0].message}"
        + (", …" if count > 1 else "."),
        faults=tuple(faults),
    )


def _as_json(value: object) -> object:
    """Return the same as every writer of JSON would: keys as texts, whole numbers without a point.

    Browsers write 2e8 as 200000000, Python as 200000000.0: it is one question.
    """
    if isinstance(value, Mapping):
        return {str(key): _as_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_as_json(item) for item in value]
    if isinstance(value, float) and value.is_integer() and abs(value) < EXACT_BELOW:
        return int(value)
    return value


def _content_sha256(request: PlanRequest) -> bytes:
    asked = {
        "spec": request.document,
        "method": request.method,
        "objective": request.objective,
        "time_limit_s": request.time_limit_s,
        "name": request.name,
    }
    canonical = json.dumps(asked, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(canonical.encode()).digest()
