"""The commands that grant access, and the token that other commands send to a server."""

from __future__ import annotations

import json
import stat
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

import pytest

from app.access.admission import NAME, make_first_token
from app.access.models import Token
from app.access.people import can_be_administered
from app.access.sign_ins import sign_in
from app.access.tokens import digest, is_token, list_tokens, revoke_token
from app.cli.server import Server, ServerError
from app.errors import StartupError
from app.platform.identity import Right
from tests.integration.api import bodies
from tests.support.command import Done, paceline

if TYPE_CHECKING:
    from pathlib import Path

    from app.platform.container import Container
    from app.platform.settings import Settings
    from tests.integration.access.conftest import Company


@pytest.fixture
def database(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    assert settings.database_url is not None
    monkeypatch.setenv("PACELINE_DATABASE_URL", settings.database_url)


@pytest.mark.usefixtures("database")
def test_tokens_are_made_listed_and_revoked() -> None:
    made = paceline("token", "create", "ci", "--scope", "ingest", "--scope", "read")
    assert made.returncode == 0, made.stderr
    assert is_token(made.stdout.strip())
    listed = paceline("token", "list").stdout
    assert "ci" in listed
    assert "ingest, read" in listed
    assert made.stdout.strip() not in listed
    assert paceline("token", "create", "ci", "--scope", "read").returncode == 1
    renewed = paceline("token", "renew", "ci", "--expires-days", "7")
    assert renewed.returncode == 0, renewed.stderr
    assert f"{datetime.now(UTC) + timedelta(days=7):%Y-%m-%d}" in renewed.stderr
    assert paceline("token", "revoke", "ci").returncode == 0
    assert paceline("token", "renew", "ci").returncode == 1
    assert "ingest" not in paceline("token", "list").stdout


@pytest.mark.usefixtures("database")
def test_a_token_is_made_for_some_jobs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    made = paceline(
        "token", "create", "ci", "--scope", "ingest", "--job", "llama-70b", "--job", "research-*"
    )
    assert made.returncode == 0, made.stderr
    assert "llama-70b, research-*" in paceline("token", "list").stdout
    wrong = paceline("token", "create", "ops", "--scope", "operate", "--job", "llama-70b")
    assert wrong.returncode == 1
    assert "A token for some jobs has the scopes ingest or ingest and read." in wrong.stderr


def test_connecting_makes_a_token_for_the_job(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    def connect() -> Done:
        options = ("--framework", "ddp", "--launcher", "slurm", "--job", "llama-70b")
        return paceline("connect", *options, "--server", company.url)

    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.ADMIN, project=None))
    done = connect()
    assert done.returncode == 0, done.stderr
    [line] = [line for line in done.stdout.splitlines() if "PACELINE_TOKEN=" in line]
    secret = line.split()[1].removeprefix("PACELINE_TOKEN=")
    with company.container.reading() as tx:
        [token] = [token for token in list_tokens(tx) if token.name == "llama-70b"]
    assert (token.rights, token.jobs, token.project) == (
        (Right.INGEST,),
        ("llama-70b",),
        "default",
    )
    again = connect()
    assert again.returncode == 0
    assert "There is a token llama-70b already." in again.stderr
    assert "# paceline token create llama-70b --scope ingest --job llama-70b" in again.stdout
    # The job's own token may create no token, and send no session of another job.
    monkeypatch.setenv("PACELINE_TOKEN", secret)
    own = connect()
    assert own.returncode == 0, own.stderr
    assert "An administrator creates its token: paceline token create" in own.stderr
    assert "No session was sent" in own.stderr


@pytest.mark.usefixtures("database")
@pytest.mark.parametrize(
    "command", [("token", "create", "--scope", "read"), ("user", "create")], ids=["token", "user"]
)
def test_names_that_look_like_others_are_refused(
    command: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PACELINE_PASSWORD", "correct horse battery")
    done = paceline(*command, "\u0430da")
    assert done.returncode == 1
    assert "The name mixes Latin and Cyrillic letters, which look alike: " in done.stderr


@pytest.mark.usefixtures("database")
def test_a_user_signs_in_with_the_password_that_was_given(
    container: Container, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not can_be_administered(container)
    monkeypatch.setenv("PACELINE_PASSWORD", "correct horse battery")
    made = paceline("user", "create", "ada")
    assert made.returncode == 0, made.stderr
    assert sign_in(container, "ada", "correct horse battery").principal.name == "ada"
    assert can_be_administered(container)


def test_the_first_token_is_made_once_and_only_its_owner_may_read_it(
    container: Container, tmp_path: Path
) -> None:
    path = tmp_path / "token"
    settings = container.settings.model_copy(update={"admin_token_file": path})
    new = _with(container, settings)
    make_first_token(new)
    make_first_token(new)
    secret = path.read_text().strip()
    assert is_token(secret)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    with container.everywhere().reading() as tx:
        rows = tx.session.query(Token).all()
        assert [(row.sha256, row.scopes) for row in rows] == [(digest(secret), ["admin"])]

    path.write_text("plc_something\n")
    with pytest.raises(StartupError, match="holds no token"):
        make_first_token(new)
    path.unlink()
    with pytest.raises(StartupError, match="revoke that one first"):
        make_first_token(new)
    revoke_token(container.everywhere(), "first-administrator")
    make_first_token(new)


def test_processes_that_start_at_once_make_one_first_token(
    container: Container, tmp_path: Path
) -> None:
    for number in range(5):
        file = tmp_path / f"token-{number}"
        new = _with(container, container.settings.model_copy(update={"admin_token_file": file}))
        together = threading.Barrier(4)

        def make(new: Container = new, together: threading.Barrier = together) -> None:
            together.wait()
            make_first_token(new)

        with ThreadPoolExecutor(4) as pool:
            for done in [pool.submit(make) for _ in range(4)]:
                done.result()
        with container.everywhere().reading() as tx:
            assert [one.name for one in list_tokens(tx) if one.valid] == [NAME]
        revoke_token(container.everywhere(), NAME)


@pytest.mark.usefixtures("database")
def test_migrating_makes_the_first_token_in_the_file_that_the_environment_names(
    container: Container, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "token"
    monkeypatch.setenv("PACELINE_ADMIN_TOKEN_FILE", str(path))
    assert not can_be_administered(container)
    for _ in range(2):
        done = paceline("migrate")
        assert done.returncode == 0, done.stderr
    assert can_be_administered(container)
    assert is_token(path.read_text().strip())
    # The token is in the file only.
    assert path.read_text().strip() not in done.stdout + done.stderr


def _with(container: Container, settings: Settings) -> Container:
    return replace(container, settings=settings)


def test_the_command_line_shows_the_token_of_its_environment(
    company: Company, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(ServerError, match="is not signed in"), Server(company.url) as server:
        server.get("/api/v1/sessions")
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.READ, project=None))
    monkeypatch.setenv("PACELINE_PROJECT", "other")
    with Server(company.url) as server:
        assert server.get("/api/v1/sessions") == {"sessions": []}


def test_an_upload_with_a_token_that_may_only_send_is_accepted_and_not_waited_for(
    company: Company, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PACELINE_TOKEN", company.token(Right.INGEST))
    trace, meta = tmp_path / "trace.parquet", tmp_path / "meta.json"
    trace.write_bytes(bodies.parquet())
    meta.write_text(json.dumps(bodies.SIZES))

    done = paceline(
        "upload", trace, "--meta", meta, "--job", "llama", "--wait", "--server", company.url
    )

    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(f"{company.url}/sessions/")
    assert "The upload was accepted. This token may not read the verdict" in done.stderr


def test_an_upload_for_a_job_with_a_slash_says_the_rule(company: Company, tmp_path: Path) -> None:
    trace = tmp_path / "trace.parquet"
    trace.write_bytes(bodies.parquet())

    done = paceline("upload", trace, "--job", "team/llama", "--server", company.url)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr.splitlines()[-1] == (
        "paceline: team/llama has a slash, which would be a folder in an address: write - or . "
        "instead. A job's name has 1 to 200 printable characters of any script, without a slash "
        "and without blanks around them. [job.invalid_name]"
    )
