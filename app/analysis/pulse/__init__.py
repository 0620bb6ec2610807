"""Detection of slow and hung ranks between sessions, from a few measures per rank and step."""
