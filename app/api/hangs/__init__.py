"""Routes of hangs."""
