"""Hangs of jobs: received, judged, read, ended."""
