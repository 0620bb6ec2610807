"""Pulses of jobs: received, watched, read."""
