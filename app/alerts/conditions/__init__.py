"""What else than sessions makes incidents: hangs, and notices of the pulse."""
