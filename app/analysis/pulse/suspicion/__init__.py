"""Whom the evidence is about: notices are opened, changed and cleared."""
