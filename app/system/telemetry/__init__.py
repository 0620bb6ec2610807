"""OpenTelemetry, by its own libraries: off unless its standard variables name a receiver.

`spans` is what the program calls, `export` what a process starts. `OTEL_…` are read by the SDK
itself and are no settings of ours.
"""
