"""The metadata of where a rank runs: its machine, its GPU and its launcher."""

from __future__ import annotations

import os
import threading
from collections.abc import Mapping
from typing import Any, Final

from paceline_client.machine import launcher_of, machine_of

_WHOLE: Final = ("GPU-", "MIG-")
# A driver that was not loaded takes a second or two to answer.
_NVML_WAIT_S: Final = 5.0


def whereabouts(rank: int, cuda: Any) -> dict[str, Any]:  # noqa: ANN401 - torch.cuda
    """Return the metadata of where a rank runs; that of rank 0 also contains the launcher."""
    meta = machine_of().document(rank)
    launcher = launcher_of() if rank == 0 else {}
    if launcher:
        meta["launcher"] = launcher
    for key, value in gpu_of(cuda).items():
        meta[key] = {str(rank): value}
    return meta


def gpu_of(cuda: Any, environment: Mapping[str, str] = os.environ) -> dict[str, str]:  # noqa: ANN401 - torch.cuda
    """Return ``gpus``, ``gpu_uuids`` and ``gpu_pci`` of the current device, as far as known.

    Parameters
    ----------
    cuda : module
        `torch.cuda`.
    """
    if not cuda.is_available():
        return {}
    device = int(cuda.current_device())
    visible = _visible(environment, device)
    # The number that the node gives it: each process may see one GPU only.
    found = {"gpus": visible if visible.isdecimal() else str(device)}
    try:
        properties = cuda.get_device_properties(device)
    except (AssertionError, RuntimeError):
        return found
    address = _address(properties)
    uuid = _uuid(visible, str(getattr(properties, "uuid", "") or ""), address)
    if uuid:
        found["gpu_uuids"] = uuid
    if address:
        found["gpu_pci"] = address
    return found


def _visible(environment: Mapping[str, str], device: int) -> str:
    """Return the name under which a device was made visible; empty if all are."""
    names = environment.get("CUDA_VISIBLE_DEVICES", "").split(",")
    return names[device].strip() if device < len(names) else ""


def _address(properties: Any) -> str:  # noqa: ANN401 - of torch's C++ part
    parts = [getattr(properties, f"pci_{part}_id", None) for part in ("domain", "bus", "device")]
    if any(not isinstance(part, int) for part in parts):
        return ""
    domain, bus, device = parts
    return f"{domain:08x}:{bus:02x}:{device:02x}.0"


def _uuid(visible: str, said: str, address: str) -> str:
    # A part of a GPU has a name of its own; torch may give that of the whole GPU.
    if visible.startswith("MIG-"):
        return visible
    if said:
        return said if said.startswith(_WHOLE) else f"GPU-{said}"
    return _uuid_by_nvml(address) if address else ""


def _uuid_by_nvml(address: str) -> str:
    """Return the UUID by NVML's Python module, for versions of torch that do not provide it.

    The training waits for it: for a driver that hangs not for long.
    """
    found: list[str] = []
    asking = threading.Thread(
        target=lambda: found.append(_asked_of_nvml(address)), name="paceline-nvml", daemon=True
    )
    asking.start()
    asking.join(_NVML_WAIT_S)
    return found[0] if found else ""


def _asked_of_nvml(address: str) -> str:
    try:
        import pynvml  # noqa: PLC0415 - part of some installations only
    except ImportError:
        return ""
    try:
        pynvml.nvmlInit()
        try:
            handle = pynvml.nvmlDeviceGetHandleByPciBusId(address.encode())
            uuid = pynvml.nvmlDeviceGetUUID(handle)
        finally:
            pynvml.nvmlShutdown()
    except Exception:  # noqa: BLE001 - whatever this version of NVML raises
        return ""
    return uuid.decode() if isinstance(uuid, bytes) else str(uuid)
