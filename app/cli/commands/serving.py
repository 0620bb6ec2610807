"""Commands that run an installation, check it, or serve tools for assistants."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from app.cli.commands.options import LOCAL_SERVER, ServerOption
from app.platform.resources import loading

if TYPE_CHECKING:
    from app.platform.settings import Settings


app = typer.Typer()


@app.command()
def mcp(
    *,
    server: ServerOption = LOCAL_SERVER,
    allow_acknowledge: Annotated[
        bool, typer.Option(help="Also offer the tool that acknowledges incidents")
    ] = False,
) -> None:
    """Serve tools for an assistant by the Model Context Protocol, over standard input and output.

    They ask the server with the token of PACELINE_TOKEN.
    """
    from app.cli.hang import serve_tools

    serve_tools(server, may_acknowledge=allow_acknowledge)


HostOption = Annotated[str | None, typer.Option(help="Address to listen on [127.0.0.1]")]
PortOption = Annotated[int | None, typer.Option(min=0, max=65535, help="Port [8765]; 0: any free")]
DataDirOption = Annotated[
    Path | None, typer.Option(file_okay=False, help="Where the embedded database lives")
]


@app.command()
def serve(
    *,
    host: HostOption = None,
    port: PortOption = None,
    data_dir: DataDirOption = None,
    workers: Annotated[
        int,
        typer.Option(
            min=1,
            max=256,
            help="Processes that answer requests, at one address; with the embedded database also "
            "analyses at once",
        ),
    ] = 1,
) -> None:
    """Serve the API and the dashboard; with the embedded database unless one is configured."""
    with loading():
        from app.cli.demo.run import refuse_demo
        from app.run.supervisor import serve as run

    settings = _settings(host, port, data_dir)
    refuse_demo(settings)
    run(settings, processes=workers)


@app.command()
def demo(
    *,
    host: HostOption = None,
    port: PortOption = None,
    data_dir: Annotated[
        Path | None, typer.Option(file_okay=False, help="Where the demo's own database lives")
    ] = None,
    fresh: Annotated[bool, typer.Option("--fresh", help="Delete the demo's data first")] = False,
    live: Annotated[
        bool, typer.Option("--live/--no-live", help="Let a job run that gets slow and well again")
    ] = True,
) -> None:
    """Serve two weeks of a synthetic fleet to look at, from a database of the demo's own."""
    with loading():
        from app.cli.demo.run import run_demo

    run_demo(_settings(host, port, None), data_dir, fresh=fresh, live=live)


@app.command()
def worker(
    *,
    processes: Annotated[
        int, typer.Option(min=1, max=256, help="Analyses at once, each in a process of its own")
    ] = 1,
) -> None:
    """Run the workers of a production installation."""
    with loading():
        from app.platform.settings import Settings
        from app.run.workers import run_workers

    run_workers(Settings(), processes)


@app.command()
def migrate() -> None:
    """Bring the schema of the configured database up to date; make the first token."""
    from app.access.admission import make_first_token
    from app.cli.retention import opened
    from app.errors import StartupError
    from app.platform.database.migrate import upgrade
    from app.platform.settings import Settings

    settings = Settings()
    url = settings.database_url
    if url is None:
        raise StartupError(
            "PACELINE_DATABASE_URL is not set; the embedded database is migrated when it starts"
        )
    with opened(settings, "migrate", migrated=False) as container:
        upgrade(url)
        make_first_token(container)


@app.command()
def doctor() -> None:
    """Say what is wrong with this installation."""
    from app.cli.doctor import examine
    from app.platform.settings import Settings

    if not examine(Settings()):
        raise typer.Exit(1)


def _settings(host: str | None, port: int | None, data_dir: Path | None) -> Settings:
    """Return the settings of the environment, overridden by what the command line says."""
    from app.platform.settings import Settings

    given = {"host": host, "port": port, "data_dir": data_dir}
    return Settings().model_copy(
        update={name: value for name, value in given.items() if value is not None}
    )
