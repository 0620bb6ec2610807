"""Score the detection on the second physics: ``make pulse-score PHYSICS=independent``."""

from __future__ import annotations

import argparse
import sys
from dataclasses import replace

import numpy as np

from app.analysis.pulse.columns import NO_BEAT, Pulses
from app.analysis.pulse.detector import Detector, Record
from app.analysis.pulse.notices import Notice
from tests.support.pulses.physics import HOST_RANKS, Columns, Slow, draw_habits, pulse

_BATCH = 1 << 16


def notices_in(columns: Columns, world: int) -> tuple[Notice, ...]:
    """Return the notices that the detection finds in some columns."""
    count = len(columns["rank"])
    none = np.zeros(count, np.int64)
    beats = {"phase": np.full(count, NO_BEAT), "since_ns": none}
    rows = Pulses(**columns, **beats, phases=())
    hosts = {rank: f"h{rank // HOST_RANKS}" for rank in range(world)}
    detector, record = Detector(hosts=hosts), Record()
    for start in range(0, count, _BATCH):
        record.take(detector.advance(rows.take(slice(start, start + _BATCH))))
    record.take(detector.finish())
    return record.listed


def main() -> None:
    """Print latencies of slow ranks, hosts and networks, and false notices of healthy jobs."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--jobs", type=int, default=60, help="jobs, half of them healthy")
    parser.add_argument("--steps", type=int, default=5000, help="steps of a healthy job")
    options = parser.parse_args()
    hours = false = rank_steps = 0.0
    for number in range(options.jobs // 2):
        rng = np.random.default_rng([options.seed, number])
        habits = draw_habits(rng, options.steps)
        found = notices_in(pulse(habits, rng), habits.world)
        rank_steps += habits.world * habits.steps
        hours += habits.world * habits.steps * habits.seconds / 3600
        false += len(found)
        for notice in found:
            sys.stderr.write(
                f"{number}: {notice.kind} {notice.ranks} {notice.factor or 0:.3f} "
                f"{notice.from_step}-{notice.noticed_step} {habits}\n"
            )
    for name, factor in (("rank", 1.1), ("rank", 1.5), ("host", 1.2), ("network", 1.3)):
        _fault(options.seed, name, factor, options.jobs // 8)
    sys.stdout.write(
        f"false {false:.0f} in {hours:.0f} rank-hours ({rank_steps / 1e6:.1f} million steps "
        "of ranks)\n"
    )


def _fault(seed: int, name: str, factor: float, count: int) -> None:
    late: list[int] = []
    right = others = 0
    for number in range(count):
        rng = np.random.default_rng([seed, 1000 + number, int(factor * 100), len(name)])
        habits = draw_habits(rng, 900, lengths=False)
        if name == "host" and habits.world <= HOST_RANKS:
            habits = replace(habits, replicas=16)
        first = int(rng.integers(habits.world))
        host = first // HOST_RANKS * HOST_RANKS
        whose = {"rank": (first,), "host": tuple(range(host, host + HOST_RANKS)), "network": ()}
        begin = int(rng.integers(200, 600))
        wrong = Slow(whose[name], begin, factor, in_network=name == "network")
        found = notices_in(pulse(habits, rng, wrong), habits.world)
        mine = [notice for notice in found if notice.ranks == whose[name]]
        others += len(found) - len(mine)
        if mine:
            right += 1
            late.append(mine[0].noticed_step - begin)
    middle, most = np.quantile(late, [0.5, 0.9], method="higher") if late else (float("nan"),) * 2
    sys.stdout.write(
        f"{name} {factor - 1:.0%}: {right} of {count} with the right ranks, after {middle:.0f} "
        f"steps (p50), {most:.0f} (p90); {others} other notices\n"
    )


if __name__ == "__main__":
    main()
