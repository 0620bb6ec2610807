"""Kill, stop, fill and take away what an installation is made of, while sessions are sent to it.

The whole installation is real and as in production: PostgreSQL with fsync, Redis, and API and
workers in several processes each. Each cycle sends a session in one body and one in chunks of six
ranks, some cut off in the middle first, and meanwhile one of `DISASTERS` happens. Senders send
again until they are answered.

Judged is the database at the end, against a ledger of what was acknowledged. Prints, last,
``cycles 20, sent 380, stored 380, lost 0, doubled 0, stuck 0``, and fails on anything else.
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
    """Run cycles and return what came of them."""
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
            # Each as often as any other.
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
    """Run cycles and print what came out."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cycles", type=int, default=20)
    parser.add_argument("--seed", type=int, default=20_261_122)
    parser.add_argument("--keep", type=Path, help="where to leave what the processes said")
    asked = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="paceline-chaos-") as name:
        directory = asked.keep or Path(name)
        directory.mkdir(exist_ok=True)
        # The database runs as another account than root.
        directory.chmod(0o755)
        verdict = run(directory, asked.cycles, asked.seed)
    print(
        f"cycles {asked.cycles}, sent {verdict.sent}, stored {verdict.stored}, "
        f"lost {verdict.lost}, doubled {verdict.doubled}, stuck {verdict.stuck}"
    )
    return int(not verdict.holds())


if __name__ == "__main__":
    sys.exit(main())
