"""Ownership of attempts: the first token that sends data of an attempt owns the attempt.

Another token cannot add to the attempt, so that it can neither seal its sessions nor resolve its
incidents. A token for some jobs takes precedence over tokens for all jobs of the project. A revoked
or expired token owns nothing. People, tokens that may operate, and requests without sign-in own
nothing and may always send.
"""

from __future__ import annotations

import uuid
from typing import Final

from app.errors import ForbiddenError
from app.platform.blobs import connection_of
from app.platform.container import Container
from app.platform.database.unit_of_work import Reads, UnitOfWork
from app.platform.identity import Refusal, Right


class AttemptOwnedError(ForbiddenError):
    """Another token sends the data of the attempt, or of the job."""

    code = "attempt.owned"


_VALID: Final = """
token.revoked_at IS NULL AND (token.expires_at IS NULL OR token.expires_at > now())
AND (token.project_id IS NULL OR token.project_id = %(project)s)
"""
# A valid token that the request's token has to respect; `of_job`: the latter is for some jobs.
_RESPECTED: Final = f"{_VALID} AND (token.jobs IS NOT NULL OR NOT %(of_job)s)"
# Returns no row if another such token owns the attempt, or if a token for all jobs would open an
# attempt of a job that a token for some jobs has sent for.
_CLAIM: Final = f"""
INSERT INTO attempt_owner AS present (project_id, job_id, attempt, token_id)
SELECT %(project)s, %(job)s, %(attempt)s, %(token)s
WHERE %(of_job)s OR NOT EXISTS (
    SELECT FROM attempt_owner AS other JOIN token ON token.id = other.token_id
    WHERE other.job_id = %(job)s AND token.jobs IS NOT NULL AND {_VALID}
)
ON CONFLICT (job_id, attempt) DO UPDATE SET token_id = excluded.token_id
WHERE NOT EXISTS (SELECT FROM token WHERE token.id = present.token_id AND {_RESPECTED})
RETURNING token_id
"""  # noqa: S608 - a constant
_OWNER: Final = """
SELECT owner.token_id = %(token)s, token.name
FROM attempt_owner AS owner LEFT JOIN token ON token.id = owner.token_id
WHERE owner.job_id = %(job)s AND owner.attempt = %(attempt)s
"""
# Whether the token owns an attempt of the job, and the name of a respected token that does.
_OWNERS: Final = f"""
SELECT bool_or(owner.token_id = %(token)s),
       min(token.name) FILTER (WHERE owner.token_id <> %(token)s AND {_RESPECTED})
FROM attempt_owner AS owner JOIN job ON job.id = owner.job_id
LEFT JOIN token ON token.id = owner.token_id
WHERE job.project_id = %(project)s AND job.name = %(job)s
"""  # noqa: S608 - a constant


def owning_token(container: Container) -> uuid.UUID | None:
    """Return the id of the request's token, if ownership of attempts applies to the request."""
    principal = container.principal
    operates = Right.OPERATE in principal.rights_in(container.project_id)
    return None if operates else principal.token


def claim_attempt(
    container: Container, tx: UnitOfWork, job: str, job_id: int, attempt: int
) -> None:
    """Make the request's token the owner of an attempt, unless a token that it respects owns it.

    A token for all jobs opens no attempt of a job for which a valid token for some jobs has sent.

    Raises
    ------
    AttemptOwnedError
        ``attempt.owned``.
    """
    token = owning_token(container)
    if token is None:
        return
    given = {
        "project": container.project_id,
        "job": job_id,
        "attempt": attempt,
        "token": token,
        "of_job": container.principal.jobs is not None,
    }
    connection = connection_of(tx)
    if connection.execute(_CLAIM, given).fetchone() is not None:
        return
    own, owner = connection.execute(_OWNER, given).fetchone() or (False, None)
    if own:
        return
    if owner is None:
        raise _refused(container, job, f"The job {job} has a token for itself")
    raise _refused(container, job, f"The token {owner} sends attempt {attempt} of the job {job}")


def check_sender(container: Container, tx: Reads, job: str) -> bool:
    """Check a request about a job that names no attempt; return False if no attempt has an owner.

    Raises
    ------
    AttemptOwnedError
        ``attempt.owned``: respected tokens own attempts of the job, and the request's token none.
    """
    token = owning_token(container)
    if token is None:
        return True
    given = {
        "project": container.project_id,
        "job": job,
        "token": token,
        "of_job": container.principal.jobs is not None,
    }
    own, other = connection_of(tx).execute(_OWNERS, given).fetchone() or (None, None)
    if other is not None and not own:
        raise _refused(container, job, f"The token {other} sends for the job {job}")
    return bool(own)


def _refused(container: Container, job: str, reason: str) -> AttemptOwnedError:
    principal, code = container.principal, AttemptOwnedError.code
    container.refusals.note(Refusal(principal.kind, principal.name, f"data of job {job}", code))
    return AttemptOwnedError(
        f"{reason}: send with that token or with one that may operate, or revoke it first."
    )
