"""Models of faults: each derives a world from a healthy one."""
