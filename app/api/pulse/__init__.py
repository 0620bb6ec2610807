"""Routes of pulses."""
