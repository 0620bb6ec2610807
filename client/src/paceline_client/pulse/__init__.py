"""The pulse: a row for each step, and a beat every few seconds, sent all the time."""
