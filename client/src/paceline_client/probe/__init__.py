"""Probe a machine: how fast its devices multiply, copy and reduce, while no job runs on it.

A session names the slow worker; a probe confirms or clears its machine before it is replaced. What
it measures is compared on the server with the same kind of device elsewhere.
"""

from __future__ import annotations

from paceline_client.probe.machine import Device, Measured, ProbeError, probe
from paceline_client.probe.measures import MEASURES

__all__ = ["MEASURES", "Device", "Measured", "ProbeError", "probe"]
