"""Use cases of fixes: marked as applied, measured by the next session, held against predictions."""
