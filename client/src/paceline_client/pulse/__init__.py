"""What ranks send all the time: a few numbers a step, and a beat every few seconds."""
