"""``python -m paceline_client``: send what waits in a spool, or probe this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline_client.delivery import DeliveryError
from paceline_client.probe.machine import ProbeError, probe
from paceline_client.probe.words import lines_of
from paceline_client.sending import send_waiting
from paceline_client.spool import Spool, default_directory


def main() -> int:
    """Return 0 if all was done."""
    parser = argparse.ArgumentParser(prog="python -m paceline_client")
    commands = parser.add_subparsers(dest="command", required=True)
    send = commands.add_parser("send", help="send the shares that wait in a spool")
    send.add_argument("server", help="http://paceline.example:8765")
    send.add_argument("--spool", type=Path, default=default_directory(), metavar="DIR")
    send.add_argument("--recorded-for", metavar="SERVER", help="the address that the job was given")
    probes = commands.add_parser("probe", help="measure the GPUs of this machine")
    probes.add_argument("server", nargs="?", help="where its ledger is; without, only printed")
    probes.add_argument("--seconds", type=float, default=2.0, help="of each measure")
    probes.add_argument("--busy", action="store_true", help="also GPUs that others use")
    given = parser.parse_args()
    return _send(given) if given.command == "send" else _probe(given)


def _send(given: argparse.Namespace) -> int:
    done = send_waiting(
        Spool(given.spool), given.server, instead_of=given.recorded_for or given.server
    )
    print(f"{done.sent} sent, {done.left} left in {given.spool}")  # noqa: T201
    return int(done.left > 0)


def _probe(given: argparse.Namespace) -> int:
    try:
        measured = probe(seconds=given.seconds, busy=given.busy)
        sys.stdout.writelines(f"{line}\n" for line in lines_of(measured))
        if given.server:
            said = measured.send(given.server)
            sys.stdout.write(f"{said['sentence']}\n{said['url']}\n")
    except (ProbeError, DeliveryError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
