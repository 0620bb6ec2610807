"""The diagnosis held against the second physics of `tests.oracles.physics`."""
