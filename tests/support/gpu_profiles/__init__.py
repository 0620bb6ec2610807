"""Profiler files of GPU jobs that are simulated event by event, with the slowdown that is true."""
