"""Detection of slow and hung ranks between sessions, from a few numbers a rank and step."""
