"""A second physics of training jobs, which tests the diagnosis independently.

It shares no code or constant with the product: it has its own schedules, execution of events, fault
models and random draws, written from papers and the sources of frameworks. The rules of the
diagnosis are never fitted to it. Times are in seconds.
"""
