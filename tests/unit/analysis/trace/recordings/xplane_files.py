"""Files of XProf in the format of ``xplane.proto``, written byte by byte.

The planes and lines are those of a TPU: ``Steps``, ``XLA Modules`` and ``XLA Ops`` of each device,
times in picoseconds from the start of the profile.
"""

from __future__ import annotations

import gzip
import json
from dataclasses import dataclass, field

STARTED_NS = 1_790_857_026_000_000_123
US = 1_000_000  # picoseconds


def varint(value: int) -> bytes:
    value &= (1 << 64) - 1
    written = b""
    while value > 0x7F:
        written += bytes((value & 0x7F | 0x80,))
        value >>= 7
    return written + bytes((value,))


def number(field_number: int, value: int) -> bytes:
    return varint(field_number << 3) + varint(value)


def bytes_of(field_number: int, value: bytes | str) -> bytes:
    value = value.encode() if isinstance(value, str) else value
    return varint(field_number << 3 | 2) + varint(len(value)) + value


@dataclass
class Line:
    name: str
    timestamp_ns: int = 0
    # name, offset and duration in ps, stats by name
    events: list[tuple[str, int, int, dict[str, int | str]]] = field(default_factory=list)

    def add(self, name: str, offset: int, duration: int, **stats: int | str) -> None:
        self.events.append((name, offset, duration, stats))


@dataclass
class Plane:
    name: str
    lines: list[Line] = field(default_factory=list)
    stats: dict[str, int] = field(default_factory=dict)

    def line(self, name: str, timestamp_ns: int = 0) -> Line:
        self.lines.append(Line(name, timestamp_ns))
        return self.lines[-1]

    def message(self) -> bytes:
        """Return the plane with its lines before the names of their events, as XProf writes it."""
        names: dict[str, int] = {}
        stats: dict[str, int] = {}

        def of(known: dict[str, int], name: str) -> int:
            return known.setdefault(name, len(known) + 1)

        def stat(name: str, value: int | str) -> bytes:
            said = number(4, value) if isinstance(value, int) else bytes_of(5, value)
            return number(1, of(stats, name)) + said

        lines = b""
        for line in self.lines:
            events = b"".join(
                bytes_of(
                    4,
                    number(1, of(names, name))
                    + number(2, offset)
                    + number(3, duration)
                    + b"".join(bytes_of(4, stat(key, value)) for key, value in said.items()),
                )
                for name, offset, duration, said in line.events
            )
            head = number(1, 7) + bytes_of(2, line.name) + number(3, line.timestamp_ns)
            lines += bytes_of(3, head + events)
        own = b"".join(bytes_of(6, stat(key, value)) for key, value in self.stats.items())
        metadata = b"".join(
            bytes_of(
                number_of,
                number(1, key) + bytes_of(2, number(1, key) + bytes_of(2, name)),
            )
            for number_of, known in ((4, names), (5, stats))
            for name, key in known.items()
        )
        return number(1, 3) + bytes_of(2, self.name) + lines + metadata + own


@dataclass
class Host:
    """The profile of one host."""

    planes: list[Plane] = field(default_factory=list)
    name: str = ""
    started_ns: int = STARTED_NS

    def plane(self, name: str) -> Plane:
        self.planes.append(Plane(name))
        return self.planes[-1]

    def body(self) -> bytes:
        """Return the profile as ``*.xplane.pb``."""
        task = Plane("Task Environment", stats={"profile_start_time": self.started_ns})
        planes = b"".join(bytes_of(1, plane.message()) for plane in [*self.planes, task])
        return planes + (bytes_of(4, self.name) if self.name else b"")

    def trace_json(self) -> bytes:
        """Return the same events as ``trace.json.gz``."""
        events: list[dict[str, object]] = []
        for process, plane in enumerate(self.planes, start=1):
            said = {"ph": "M", "pid": process, "name": "process_name"}
            events.append({**said, "args": {"name": plane.name}})
            for thread, line in enumerate(plane.lines, start=1):
                said = {"ph": "M", "pid": process, "tid": thread, "name": "thread_name"}
                events.append({**said, "args": {"name": line.name}})
                for name, offset, duration, stats in line.events:
                    short, _, text = name.partition(" = ")
                    args = {key: str(value) for key, value in stats.items()}
                    if text:
                        args["long_name"] = name
                    events.append(
                        {
                            "ph": "X",
                            "pid": process,
                            "tid": thread,
                            "ts": offset / US + line.timestamp_ns / 1000,
                            "dur": duration / US,
                            "name": short.removeprefix("%"),
                            "args": args,
                        }
                    )
        head = {"displayTimeUnit": "ns", "metadata": {"highres-ticks": True}}
        return gzip.compress(json.dumps({**head, "traceEvents": [*events, {}]}).encode(), mtime=0)


GATHER = "f32[64]{0:T(256)} all-gather-%s(%s), replica_groups=[1,%d]<=[%d]"
REDUCE = (
    "%%all-reduce.7 = (f32[8]{0}, f32[]) all-reduce(f32[8]{0} %%p.1, f32[] %%p.2), channel_id=2, "
    "replica_groups={{%s}}, to_apply=%%add"
)


def tpu_hosts(
    hosts: int = 2,
    devices: int = 4,
    *,
    steps: int = 5,
    slow: int | None = 5,
    times: float = 1.5,
    ahead_ns: int = 200_000_000,
) -> list[Host]:
    """Return the files of the hosts of a job, one of whose devices is slow.

    A device computes for 300 µs (the slow one `times` as long) and gathers parameters meanwhile;
    then all devices reduce gradients for 50 µs. The clock of each host is `ahead_ns` ahead of the
    previous host's.
    """
    world = hosts * devices
    found = []
    for host in range(hosts):
        file = Host(name=f"t1v-n-5f-w-{host}", started_ns=STARTED_NS + host * ahead_ns)
        python = file.plane("/host:CPU").line("python")
        for local in range(devices):
            rank = host * devices + local
            plane = file.plane(f"/device:TPU:{local}")
            lines = {name: plane.line(name) for name in ("Steps", "XLA Modules", "XLA Ops")}
            own = round(300 * US * (times if rank == slow else 1.0))
            last = round(300 * US * (times if slow is not None else 1.0))
            for step in range(steps):
                at = 1000 * US + step * 1000 * US
                ops = lines["XLA Ops"]
                start = GATHER % ("start", "f32[8]{0} %p", world, world)
                done = GATHER % (
                    "done",
                    "(f32[8]{0}, f32[64]{0}) %all-gather-start.3",
                    world,
                    world,
                )
                ops.add(f"%all-gather-start.3 = (f32[8], f32[64]) {start.split(' ', 1)[1]}", at, US)
                ops.add("%fusion.1 = f32[8]{0} fusion(f32[8]{0} %p)", at + US, own // 3)
                ops.add(f"%all-gather-done.3 = {done}", at + US + own // 3, US)
                ops.add(
                    "%fusion.2 = f32[8]{0} fusion(%fusion.1)",
                    at + 2 * US + own // 3,
                    own - own // 3,
                )
                meet = at + 2 * US + own
                reduce = REDUCE % ",".join(map(str, range(world)))
                until = at + 2 * US + last + 50 * US
                ops.add(reduce, meet, until - meet)
                ops.add("%copy-start.1 = f32[] copy-start(f32[] %x)", until, US)
                lines["XLA Modules"].add("jit_train_step(123)", at, until + US - at)
                lines["Steps"].add(str(step + 40), at, 999 * US)
                if not local:
                    python.add("train", at - 100 * US, 900 * US, step_num=step + 40, _r=1)
        found.append(file)
    return found
