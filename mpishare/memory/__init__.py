"""Segments: bytes that the ranks of one node share, from several backends.

It answers which backend a node takes (`backends`), whether an array gets memory that was used before or new memory
(`allocation`, `pool`), and how long the memory of a view lives (`segment`, `mapping`). `objects` and all above may call
it. It must never know what the bytes mean, and never wait for another rank in a finalizer.
"""
