"""Segments: bytes that the ranks of one node share, from several backends.

It answers which backend a node takes (`backends`), whether an array gets memory that was used before or new memory
(`allocation`, `pool`), how long the memory of a view lives (`segment`, `mapping`), who stored into it
(`stray_stores`), and which files stay open to be mapped privately (`kept_files`). `buffers` has memory of one rank
alone. `transfer` and all above may call it. It must never know what the bytes mean, and never wait for another rank in
a finalizer.
"""
