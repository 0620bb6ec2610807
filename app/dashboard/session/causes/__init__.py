"""How the page of a session shows its causes."""
