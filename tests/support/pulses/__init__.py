"""A second physics of pulses, which shares no code with the synthesis, and its score."""
