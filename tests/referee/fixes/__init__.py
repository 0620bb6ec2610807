"""What fixes are predicted to bring, held against the same jobs with the fix made."""
