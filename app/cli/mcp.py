"""Serve tools for an assistant over standard input and output."""

from __future__ import annotations

import asyncio

import httpx

from app.cli.server import credentials, is_loopback
from app.errors import PacelineError


class NoMcpError(PacelineError):
    """The extra of this command is not installed."""

    code = "install.incomplete"


def serve_tools(server: str, *, may_acknowledge: bool) -> None:
    """Answer until standard input ends.

    Raises
    ------
    NoMcpError
    """
    try:
        from app.mcp.asking import TIMEOUT  # noqa: PLC0415 - an extra
        from app.mcp.server import make_server  # noqa: PLC0415
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] not in ("mcp", "mcp_types"):
            raise
        message = "This command needs an extra: install paceline[server,mcp]"
        raise NoMcpError(message) from error

    async def run() -> None:
        async with httpx.AsyncClient(
            base_url=server,
            headers=credentials(),
            timeout=TIMEOUT,
            # A proxy of the environment does not lead to this machine.
            trust_env=not is_loopback(server),
        ) as client:
            tools = make_server(client, server, may_acknowledge=may_acknowledge)
            await tools.run_stdio_async()

    asyncio.run(run())
