"""Sessions that arrive in chunks, from several producers at once.

How a chunk becomes durable: `receive` takes it from a request and commits it before the answer,
appended to the `inbox` or, if it is the first, decoded and added by `intake`. Workers `absorb` the
inbox: they decode batches and add them to their sessions. `intake` seals a session once no more
chunks are expected; its analysis then `merge`s all chunks into one trace.
"""
