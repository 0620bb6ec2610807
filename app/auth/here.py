"""What a route takes: the container in the project of its request, and in the name of who asks.

Pages and API share this and the guard that puts it there. No router gets a process's own container
to read or write with.
"""

from __future__ import annotations

from typing import Annotated

from fastapi import Depends, Request

from app.services.container import Container


def here_of(request: Request) -> Container:
    """Return the container of a request that the guard let in."""
    found: Container = request.state.here
    return found


async def here(request: Request) -> Container:
    """Return the same where the framework asks for it."""
    # Asynchronous, as it waits for nothing: the framework calls a function in another thread.
    return here_of(request)


Here = Annotated[Container, Depends(here)]
