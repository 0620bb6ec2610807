"""Kill, stop, fill and remove parts of an installation while sessions are sent to it.

The installation is real and like in production: PostgreSQL with fsync, Redis, and several processes
of API and workers. Each cycle sends a session in one body and one in chunks of six ranks, some of
them interrupted first, while one of `DISASTERS` happens. Senders repeat until they get an answer.

At the end the database is compared with a ledger of acknowledged bodies. A run without a failure
ends with ``cycles 20, sent 380, stored 380, lost 0, doubled 0, stuck 0``.
"""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path

from tests.chaos.disasters import DISASTERS
from tests.chaos.installation import Installed
from tests.chaos.ledger import Ledger, Verdict


def run(directory: Path, cycles: int, seed: int) -> Verdict:
    """Run cycles and return their verdict."""
    draw = random.Random(seed)  # noqa: S311 - what to break
    installed = Installed(directory)
    ledger = Ledger()
    happened: Counter[str] = Counter()
    with installed.running():
        for cycle in range(1, cycles + 1):
            began_s = time.monotonic()
            own = random.Random(draw.random())  # noqa: S311 - as above; threads have their own
            senders = [
                threading.Thread(target=ledger.send_whole, args=(installed, cycle)),
                threading.Thread(target=ledger.send_in_chunks, args=(installed, cycle, own)),
            ]
            for sender in senders:
                sender.start()
            time.sleep(draw.uniform(0, 1))
            # Each disaster occurs equally often.
            name = list(DISASTERS)[cycle % len(DISASTERS)]
            happened[name] += 1
            DISASTERS[name](installed, draw)
            for sender in senders:
                sender.join()
            took_s = time.monotonic() - began_s
            print(f"cycle {cycle}: {name}, {took_s:.1f} s", file=sys.stderr, flush=True)
        print(", ".join(f"{name} {count}" for name, count in sorted(happened.items())))
        return ledger.compared(installed)


def main() -> int:
    """Run cycles and print the verdict."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20_261_122)
    parser.add_argument("--keep", type=Path, help="where to leave what the processes said")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-chaos-") as name:
        directory = asked.keep or Path(name)
        directory.mkdir(exist_ok=True)
        # PostgreSQL runs as another account than root, which must be able to enter this directory.
        directory.chmod(0o755)
        verdict = run(directory, asked.cycles, asked.seed)
    print(
        f"cycles {asked.cycles}, sent {verdict.sent}, stored {verdict.stored}, "
        f"lost {verdict.lost}, doubled {verdict.doubled}, stuck {verdict.stuck}"
    )
    return int(not verdict.holds())


if __name__ == "__main__":
    sys.exit(main())
