"""The pulse of a job: a row for each step and a beat every few seconds, sent continuously."""
