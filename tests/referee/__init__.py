"""The diagnosis, tested on the second physics of `tests.oracles.physics`."""
