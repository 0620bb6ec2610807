"""``python -m paceline_client``: send the shares in a spool, or probe this machine."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from paceline_client.exchange import DeliveryError
from paceline_client.probe import ProbeError, lines_of, probe
from paceline_client.sending import send_waiting
from paceline_client.spool import Spool, default_directory


def main() -> int:
    """Run the command line; return 0 if no share is left, or the probe succeeded."""
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
    options = parser.parse_args()
    if options.command == "send":
        recorded_for = options.recorded_for or options.server
        spool = Spool(options.spool)
        sent = send_waiting(spool, options.server, instead_of=recorded_for)
        sys.stdout.write(f"{sent.sent} sent, {sent.left} left in {spool.directory}\n")
        return int(sent.left > 0)
    try:
        measured = probe(seconds=options.seconds, busy=options.busy)
        sys.stdout.writelines(f"{line}\n" for line in lines_of(measured))
        if options.server:
            sentence, url = measured.send(options.server)
            sys.stdout.write(f"{sentence}\n{url}\n")
    except (ProbeError, DeliveryError, ValueError) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
