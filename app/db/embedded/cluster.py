"""The server's files: its data, made once, and who may connect, written at every start."""

from __future__ import annotations

import os
import pwd
import shutil
from typing import TYPE_CHECKING

from app.db.embedded.account import make_server_dir
from app.errors import StartupError
from app.system.launch import EXIT_DIRECTORY_CLOSED

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from app.db.embedded.programs import Programs

ROLE = "paceline"

# The first release with the builtin locale provider, which sorts alike on every machine.
_FIRST_WITH_BUILTIN_LOCALES = 17


def written_by(cluster: Path) -> int | None:
    """Return the major version of the data, or None where there are none yet.

    Raises
    ------
    StartupError
        They are not readable.
    """
    try:
        return int((cluster / "PG_VERSION").read_text().strip())
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:
        raise StartupError(f"{cluster} is not readable: {error}") from error


def create_cluster(cluster: Path, programs: Programs, server_lock: int, *, durable: bool) -> None:
    """Make the server's data where there are none yet.

    Parameters
    ----------
    durable : bool
        False gives up safety against power loss for speed.

    Raises
    ------
    StartupError
        They cannot be made; the message says why.
    """
    if cluster.exists():
        return
    # Made elsewhere and renamed when complete: an interrupted initdb leaves nothing half done.
    scratch = cluster.with_name(f"{cluster.name}.new")
    if scratch.exists():
        shutil.rmtree(scratch)
    make_server_dir(scratch, programs.account)
    locale = ["--locale=C", "--encoding=UTF8"]
    if programs.binaries.major >= _FIRST_WITH_BUILTIN_LOCALES:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    durability = [] if durable else ["--no-sync"]
    result = programs.run(
        "initdb",
        "-D",
        scratch,
        f"--username={ROLE}",
        "--auth-local=peer",
        "--auth-host=reject",
        "--data-checksums",
        "--no-instructions",
        *locale,
        *durability,
        pass_fds=(server_lock,),
    )
    if result.returncode != 0:
        shutil.rmtree(scratch)
        raise StartupError(_explain(result, programs))
    scratch.rename(cluster)


def remove_stale_pid_file(cluster: Path) -> None:
    """Remove the file with a process id: the holder of the server lock knows that it is stale.

    PostgreSQL would refuse to start if that process id had passed to another process of the same
    user meanwhile.
    """
    (cluster / "postmaster.pid").unlink(missing_ok=True)


def write_access_rules(data_dir: Path) -> None:
    """Write who may connect: the present user, as the owner of everything.

    Raises
    ------
    StartupError
        The present user has no name.
    """
    # Kept outside of the cluster: root never writes where the server's account could plant a
    # link, and the server cannot change who may connect.
    try:
        client = pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:
        raise StartupError(
            f"The user id {os.geteuid()} has no account on this system; PostgreSQL needs its "
            "name. Start Paceline as a user with an account, or set PACELINE_DATABASE_URL."
        ) from None
    name = client.replace('"', '""')
    _write(access_file(data_dir, "pg_hba"), "local all all peer map=paceline\n")
    _write(access_file(data_dir, "pg_ident"), f'paceline "{name}" {ROLE}\n')


def access_file(data_dir: Path, name: str) -> Path:
    """Return the path of ``pg_hba`` or ``pg_ident``."""
    return data_dir / f"{name}.conf"


def _explain(result: subprocess.CompletedProcess[str], programs: Programs) -> str:
    if result.returncode == EXIT_DIRECTORY_CLOSED and programs.account is not None:
        return (
            f"PostgreSQL does not run as root; the account {programs.account.name} runs it and "
            f"cannot enter {programs.directory} ({result.stderr.strip()}). Choose a data directory "
            "that other users can enter, such as /var/lib/paceline/data."
        )
    return f"initdb failed ({result.returncode}): {result.stderr.strip()}"


def _write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")
    path.chmod(0o644)
