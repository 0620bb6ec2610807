"""Use cases of probes: what a machine does while no job runs on it, held against its like."""
