"""What the page of a session draws."""
