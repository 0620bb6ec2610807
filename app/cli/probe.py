"""`paceline probe`: what this machine's devices reach, and what its ledger says of that."""

from __future__ import annotations

import sys

import paceline_client.probe as probes
from app.cli.server import Server
from app.errors import PacelineError
from paceline_client.probe.words import lines_of


class ProbeFailedError(PacelineError):
    """A machine cannot be probed."""

    code = "probe.failed"


def probe_machine(server: str | None, *, seconds: float, busy: bool) -> None:
    """Print a probe of this machine; with a server, also what it says of the machine.

    Raises
    ------
    ProbeFailedError
        PyTorch is not installed, or a GPU is in use.
    ServerError
        The server refuses it, or cannot be reached.
    """
    try:
        measured = probes.probe(seconds=seconds, busy=busy)
    except probes.ProbeError as error:
        raise ProbeFailedError(f"{error}.") from error
    sys.stdout.writelines(f"{line}\n" for line in lines_of(measured))
    if server is not None:
        with Server(server) as api:
            said = api.exchange("POST", measured.path, measured.document())
        sys.stdout.write(f"{said['sentence']}\n{said['url']}\n")
