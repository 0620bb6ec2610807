"""Tables of access: tokens, users, roles, browser sessions, guesses of passwords, audit log."""

from __future__ import annotations

import uuid
from datetime import datetime
from typing import Final

from sqlalchemy import (
    BigInteger,
    CheckConstraint,
    ForeignKey,
    Identity,
    Index,
    Text,
    UniqueConstraint,
    Uuid,
    text,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Mapped, mapped_column

from app.platform.database.columns import Base, OfProject, belongs_to

DEFAULT_PROJECT_ID: Final = 1


class Token(Base):
    """An access token of a program; only its digest is stored."""

    __tablename__ = "token"
    __table_args__ = (
        # The audit log and the command to revoke identify a token by its name.
        Index("uq_token_name", "name", unique=True, postgresql_where=text("revoked_at IS NULL")),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    # null: valid in all projects
    project_id: Mapped[int | None] = mapped_column(ForeignKey("project.id", ondelete="CASCADE"))
    name: Mapped[str]
    sha256: Mapped[bytes] = mapped_column(unique=True)
    # the first characters of the token, by which people recognize it
    begins: Mapped[str]
    scopes: Mapped[list[str]] = mapped_column(ARRAY(Text))
    # patterns of the jobs for which the token may send; null: all jobs of its project
    jobs: Mapped[list[str] | None] = mapped_column(ARRAY(Text))
    owner: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    expires_at: Mapped[datetime | None]
    last_used_at: Mapped[datetime | None]
    revoked_at: Mapped[datetime | None]


class AttemptOwner(OfProject, Base):
    """The token that first sent data of an attempt of a job: other tokens may not add to it."""

    __tablename__ = "attempt_owner"
    __table_args__ = (belongs_to("job_id", "job.id"),)

    job_id: Mapped[int] = mapped_column(BigInteger, primary_key=True)
    attempt: Mapped[int] = mapped_column(primary_key=True, autoincrement=False)
    # No foreign key: sending must not lock the token's row. Tokens are deleted with their project.
    token_id: Mapped[uuid.UUID] = mapped_column(Uuid)


class Person(Base):
    """A user, with a password of this server or with an account at an OpenID Connect provider."""

    __tablename__ = "person"
    __table_args__ = (
        UniqueConstraint("issuer", "subject"),
        CheckConstraint("(issuer IS NULL) = (subject IS NULL)", name="provider"),
        CheckConstraint("(issuer IS NULL) = (password IS NOT NULL)", name="password"),
        # A local user signs in by name; users of providers may have the same name.
        Index("uq_person_name", "name", unique=True, postgresql_where=text("issuer IS NULL")),
    )

    id: Mapped[uuid.UUID] = mapped_column(Uuid, primary_key=True)
    name: Mapped[str]
    # password hash with its parameters; null for users of a provider
    password: Mapped[str | None]
    issuer: Mapped[str | None]
    subject: Mapped[str | None]
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    last_seen_at: Mapped[datetime | None]
    # Time since which the user cannot sign in, although the user stays in the list.
    disabled_at: Mapped[datetime | None]


class Membership(Base):
    """A person's role in a project."""

    __tablename__ = "membership"
    __table_args__ = (
        CheckConstraint("role IN ('reader', 'operator', 'administrator')", name="role"),
        UniqueConstraint("person_id", "project_id", postgresql_nulls_not_distinct=True),
    )

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("person.id", ondelete="CASCADE"))
    # null: role in all projects
    project_id: Mapped[int | None] = mapped_column(ForeignKey("project.id", ondelete="CASCADE"))
    role: Mapped[str]


class BrowserSession(Base):
    """A signed-in browser session, identified by the digest of its cookie."""

    __tablename__ = "browser_session"
    __table_args__ = (Index("ix_browser_session_expires_at", "expires_at"),)

    sha256: Mapped[bytes] = mapped_column(primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("person.id", ondelete="CASCADE"))
    created_at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    expires_at: Mapped[datetime]


class PendingSignIn(Base):
    """A pending sign-in at a provider; it can be completed only once."""

    __tablename__ = "pending_sign_in"
    __table_args__ = (Index("ix_pending_sign_in_expires_at", "expires_at"),)

    # digest of the browser's cookie, which ties the provider's answer to the browser
    sha256: Mapped[bytes] = mapped_column(primary_key=True)
    state: Mapped[str]
    nonce: Mapped[str]
    code_verifier: Mapped[str]
    next_path: Mapped[str]
    expires_at: Mapped[datetime]


class GuessBucket(Base):
    """Password guesses that are counted together; deleted once they no longer delay a guess."""

    __tablename__ = "guess_bucket"
    __table_args__ = (Index("ix_guess_bucket_owed_until", "owed_until"),)

    # digest of the bucket's key, such as the client's address
    key: Mapped[bytes] = mapped_column(primary_key=True)
    # Each guess moves this time forward; if it is too far ahead of now, the next guess is refused.
    owed_until: Mapped[datetime]


class KnownBrowser(Base):
    """A browser in which a user signed in by password; guesses from elsewhere do not delay it."""

    __tablename__ = "known_browser"
    __table_args__ = (Index("ix_known_browser_person_id", "person_id"),)

    sha256: Mapped[bytes] = mapped_column(primary_key=True)
    person_id: Mapped[uuid.UUID] = mapped_column(ForeignKey("person.id", ondelete="CASCADE"))
    seen_at: Mapped[datetime]


class AuditEntry(Base):
    """An entry of the audit log; never changed, and deleted only by age.

    It holds the names at the time of the action, since it outlives its subject.
    """

    __tablename__ = "audit_entry"
    __table_args__ = (Index("ix_audit_entry_project_id_id", "project_id", "id"),)

    id: Mapped[int] = mapped_column(BigInteger, Identity(always=True), primary_key=True)
    at: Mapped[datetime] = mapped_column(server_default=text("now()"))
    # kind of the actor (person, token, system or peer) and its name
    actor_kind: Mapped[str]
    actor: Mapped[str]
    action: Mapped[str]
    subject: Mapped[str]
    # null: no project or all projects; no foreign key, because entries outlive projects
    project_id: Mapped[int | None]
    project: Mapped[str | None]
    detail: Mapped[str | None]
    count: Mapped[int] = mapped_column(server_default=text("1"))
