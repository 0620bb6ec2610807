"""A process of a probe: it measures one device, and prints what it found so far as lines of JSON.

The last line counts: a device that stands still in one measure keeps the others. All devices of a
machine measure at the same time, as in training: a power supply or a bus that several share shows
only then.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from paceline_client.probe.measures import MEASURES, Bench
from paceline_client.whereabouts import gpu_of

# Of a GPU's memory that others hold: a driver's own, and a monitor's, not a job's.
_BUSY_FROM: Final = 0.05
# How long a device waits for the others; one that failed never comes.
_PEERS_S: Final = 30.0
_CPU_INFO: Final = Path("/proc/cpuinfo")


def main() -> int:
    """Return 0; a device that fails has its reason in the last line."""
    parser = argparse.ArgumentParser()
    for name in ("--device", "--processes"):
        parser.add_argument(name, type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--store", required=True)
    parser.add_argument("--cpu", action="store_true")
    parser.add_argument("--busy", action="store_true")
    given = parser.parse_args()
    import torch  # noqa: PLC0415 - the parent has said so where it is not installed

    said: dict[str, Any] = {"device": given.device}
    try:
        for found in _probed(torch, given):
            said.update(found)
            sys.stdout.write(json.dumps(said) + "\n")
            sys.stdout.flush()
    except (RuntimeError, AssertionError) as error:
        # torch's own for a device that fails
        said["error"] = (str(error).strip().splitlines() or [type(error).__name__])[0][:500]
        sys.stdout.write(json.dumps(said) + "\n")
    return 0


def _probed(torch: Any, given: argparse.Namespace) -> Iterator[dict[str, Any]]:  # noqa: ANN401 - not typed here
    """Yield what is known of the device, more and more of it."""
    described: dict[str, Any]
    if given.cpu:
        device = torch.device("cpu")
        torch.set_num_threads(max(1, torch.get_num_threads() // given.processes))
        described = {"model": _processor(), "index": str(given.device)}
    else:
        device = torch.device("cuda", given.device)
        torch.cuda.set_device(device)
        if not given.busy and (fault := _in_use(torch, device)):
            yield {"busy": fault}
            return
        found = gpu_of(torch.cuda)
        described = {"model": torch.cuda.get_device_name(device), "index": found["gpus"]}
        described.update(
            {
                own: found[key]
                for own, key in (("uuid", "gpu_uuids"), ("pci", "gpu_pci"))
                if key in found
            }
        )
    yield {**described, "torch": torch.__version__}

    def join() -> None:
        torch.distributed.init_process_group(
            "gloo" if given.cpu else "nccl",
            store=torch.distributed.FileStore(given.store, given.processes),
            rank=given.device,
            world_size=given.processes,
            timeout=timedelta(seconds=_PEERS_S + len(MEASURES) * given.seconds),
        )

    bench = Bench(torch, device, given.seconds, given.processes, join)
    measures: dict[str, float] = {}
    for name, measure in MEASURES.items():
        yield {"measuring": name}
        value = measure(bench)
        if value is not None:
            measures[name] = value
            yield {"measures": measures}
    if given.processes > 1:
        torch.distributed.destroy_process_group()


def _in_use(torch: Any, device: Any) -> str:  # noqa: ANN401 - not typed here
    free, total = torch.cuda.mem_get_info(device)
    used = total - free
    # what this process took by looking
    own = torch.cuda.memory_reserved(device)
    if (used - own) / total <= _BUSY_FROM:
        return ""
    return f"GPU {device.index} is in use: {used / 2**30:.0f} of {total / 2**30:.0f} GiB are taken"


def _processor() -> str:
    try:
        lines = _CPU_INFO.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    named = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(named, "") or platform.processor() or platform.machine()


if __name__ == "__main__":
    sys.exit(main())
