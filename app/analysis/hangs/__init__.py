"""Diagnosis of hangs: the ranks that a stopped job waits for."""
