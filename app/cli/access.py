"""`paceline token`, `user`, `project` and `alerts`: access to an installation, and its channels.

Tokens, users and projects are changed in the database itself, because the first token has to be
created before any server accepts a request; whoever can read the database's address administers
the installation anyway.
"""

from __future__ import annotations

import contextlib
import getpass
import sys
from datetime import timedelta
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

from app.access.moves import delete_project, move_job
from app.access.people import (
    create_person,
    delete_person,
    list_people,
    person_id_of,
    set_disabled,
    set_password,
    set_role,
)
from app.access.projects import create_project, project_id_of
from app.access.tokens import create_token, list_tokens, renew_token, revoke_token
from app.cli.retention import opened
from app.cli.server import Server
from app.errors import PacelineError
from app.platform.database import migrate
from app.platform.embedded.server import EmbeddedPostgres
from app.platform.identity import ActorKind, Principal, Right, Role
from app.platform.settings import Settings
from app.platform.settings.kinds import given_password

if TYPE_CHECKING:
    import uuid
    from collections.abc import Iterator, Sequence

    from app.platform.container import Container


class PasswordError(PacelineError):
    """No password was entered, or two different passwords."""

    code = "user.password"


def make_token(
    name: str,
    rights: Sequence[Right],
    project: str | None,
    jobs: Sequence[str],
    expires_days: int | None,
) -> None:
    """Create a token and print its secret, which is shown only once."""
    with _installation() as container:
        made = create_token(
            container,
            name=name,
            rights=rights,
            project=project,
            jobs=jobs,
            expires=None if expires_days is None else timedelta(days=expires_days),
        )
    sys.stderr.write(f"Token {name}, shown this once:\n")
    sys.stdout.write(f"{made.secret}\n")


def print_tokens() -> None:
    """Print the tokens that are not revoked."""
    with _installation() as container, container.reading() as tx:
        tokens = list_tokens(tx)
    table = Table(box=None, pad_edge=False)
    for column in ("Name", "Begins", "Scopes", "Project", "Jobs", "Expires", "Last use", "Owner"):
        # Patterns of jobs are shown whole, because two long ones may begin alike.
        table.add_column(column, overflow="fold" if column == "Jobs" else "ellipsis")
    for token in tokens:
        expires = "never" if token.expires_at is None else f"{token.expires_at:%Y-%m-%d}"
        used = "never" if token.last_used_at is None else f"{token.last_used_at:%Y-%m-%d %H:%M}"
        table.add_row(
            token.name,
            f"{token.begins}…",
            ", ".join(sorted(token.rights)),
            token.project or "all",
            ", ".join(token.jobs or ("all",)),
            expires if token.valid else f"{expires} (over)",
            used,
            token.owner,
        )
    Console().print(table)


def revoke(name: str) -> None:
    """Revoke a token."""
    with _installation() as container:
        revoke_token(container, name)
    sys.stderr.write(f"Token {name} is revoked.\n")


def renew(name: str, expires_days: int) -> None:
    """Extend the validity of a token."""
    with _installation() as container:
        token = renew_token(container, name, timedelta(days=expires_days))
    sys.stderr.write(f"Token {name} is valid until {token.expires_at:%Y-%m-%d}.\n")


def make_user(name: str, role: Role, project: str | None) -> None:
    """Add a user; prompt for the password."""
    password = _password()
    with _installation() as container:
        create_person(container, name, password, role, project)
    sys.stderr.write(f"{name} may sign in.\n")


def print_users() -> None:
    """Print the people who sign in."""
    with _installation() as container, container.reading() as tx:
        people = list_people(tx)
    table = Table(box=None, pad_edge=False)
    for column in ("Name", "Signs in", "Roles", "Last sign-in", "State"):
        table.add_column(column)
    for person in people:
        roles = (f"{role.role} of {role.project or 'all projects'}" for role in person.roles)
        seen = person.last_seen_at
        table.add_row(
            person.name,
            person.issuer or "with a password",
            ", ".join(roles) or "none",
            "never" if seen is None else f"{seen:%Y-%m-%d %H:%M}",
            "may sign in" if person.disabled_at is None else "disabled",
        )
    Console().print(table)


def change_password(name: str) -> None:
    """Set a user's password, which is read from a prompt."""
    password = _password()
    with _person(name) as (container, person_id):
        set_password(container, person_id, password)
    sys.stderr.write(f"{name} has a new password, and is signed out everywhere.\n")


def change_role(name: str, role: Role | None, project: str | None) -> None:
    """Grant or revoke a user's role."""
    with _person(name) as (container, person_id):
        set_role(container, person_id, role, project)
    what = "no role" if role is None else f"the role {role}"
    sys.stderr.write(f"{name} has {what} in {project or 'all projects'}.\n")


def change_entry(name: str, *, disabled: bool) -> None:
    """Disable a user, or enable them again."""
    with _person(name) as (container, person_id):
        set_disabled(container, person_id, disabled=disabled)
    sys.stderr.write(f"{name} {'is disabled' if disabled else 'is enabled'}.\n")


def remove_user(name: str) -> None:
    """Delete a user."""
    with _person(name) as (container, person_id):
        delete_person(container, person_id)
    sys.stderr.write(f"{name} is deleted.\n")


def make_project(name: str) -> None:
    """Create a project."""
    with _installation() as container:
        create_project(container, name)
    sys.stderr.write(f"Project {name} exists.\n")


def remove_project(name: str) -> None:
    """Delete a project; the sweeper deletes its contents."""
    with _installation() as container:
        delete_project(container, name)
    sys.stderr.write(f"Access to {name} is closed; the workers delete its contents.\n")


def move(job: str, source: str, to: str) -> None:
    """Move a job to another project."""
    with _installation() as container:
        with container.reading() as tx:
            project_id = project_id_of(tx, source)
        move_job(container.within(project_id, container.principal), job, to)
    sys.stderr.write(f"{job} is in {to} now.\n")


@contextlib.contextmanager
def _installation() -> Iterator[Container]:
    """Open the database of the settings; refuse an embedded database that a server uses."""
    settings = Settings()
    with contextlib.ExitStack() as running:
        if settings.database_url is None:
            postgres = running.enter_context(EmbeddedPostgres(settings.data_dir))
            migrate.upgrade(postgres.url)
            settings = settings.model_copy(update={"database_url": postgres.url})
        container = running.enter_context(opened(settings, "access"))
        who = Principal(ActorKind.SYSTEM, f"{getpass.getuser()} (command line)", frozenset(Right))
        yield container.everywhere().named(who)


@contextlib.contextmanager
def _person(name: str) -> Iterator[tuple[Container, uuid.UUID]]:
    """Open the database and look up a user."""
    with _installation() as container:
        with container.reading() as tx:
            person_id = person_id_of(tx, name)
        yield container, person_id


def _password() -> str:
    given = given_password()
    if given is not None:
        return given
    if not sys.stdin.isatty():
        return sys.stdin.readline().rstrip("\n")
    password = getpass.getpass("Password: ")
    if getpass.getpass("Once more: ") != password:
        raise PasswordError("The two passwords differ.")
    return password


class AlertsCommandError(PacelineError):
    """The channel does not exist, or its receiver refused the example."""

    code = "alerts.failed"


def send_test(channel: str, *, server: str) -> None:
    """Send a marked example to a channel and print the receiver's answer."""
    with Server(server) as api:
        channels = [
            listed["id"]
            for listed in api.get("/api/v1/channels")["channels"]
            if channel in (listed["name"], listed["id"])
        ]
        if not channels:
            raise AlertsCommandError(f"There is no channel {channel}.", code="not_found")
        result = api.post(f"/api/v1/channels/{channels[0]}/test")
    said = " ".join(str(part) for part in (result["status"], result["answer"]) if part)
    if not result["delivered"]:
        answer = f" Its answer: {said}" if said else ""
        raise AlertsCommandError(f"{result['error']}{answer}", code=result["code"])
    sys.stdout.write(f"delivered: {said}\n")


def reseal(*, server: str) -> None:
    """Encrypt the secrets of all channels with the server's newest key, and print how many."""
    with Server(server) as api:
        count = api.post("/api/v1/channels/reseal")["channels"]
    sys.stdout.write(f"channels encrypted with the newest key: {count}\n")
