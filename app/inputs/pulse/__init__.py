"""Pulses as they are sent."""
