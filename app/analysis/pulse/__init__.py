"""What is noticed between sessions: a few numbers a rank and step in, notices out."""
