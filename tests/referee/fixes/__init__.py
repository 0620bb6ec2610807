"""Predicted gains of fixes, compared with the same jobs executed with the fix."""
