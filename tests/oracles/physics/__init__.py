"""A second physics of training jobs, to referee the diagnosis.

It shares nothing with the product, not even a constant: its own schedules, its own execution of
events, its own models of faults and its own random draws, written from what papers and the sources
of frameworks say. The rules of the diagnosis are never fitted to it. Times are float seconds.
"""
