"""Segments: bytes that the ranks of one node share, of several kinds behind one protocol (`kinds`).

It answers which kind a node takes (`selection`), whether an array gets a slot of a slab, a segment used before, or new
memory (`allocation`, `slab`, `cache`), how long a view's memory lives (`segment`, `mapping`), and which files stay open
to be mapped privately (`kept_files`). `transfer` and all above may call it. It must never know what the bytes mean, and
never wait for another rank in a finalizer.
"""
