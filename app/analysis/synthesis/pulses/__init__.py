"""Synthetic pulses of which all is known: what is slow, from when to when, and what is usual."""
