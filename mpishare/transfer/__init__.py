"""How bytes travel: within a node (`node_fill`, `cma`), between nodes (`pipeline`, `ring`), reduced (`node_reduce`).

What is decided without MPI stands in `plan` and `ring_plan`: who does which part, along which path, in what chunks.
`objects`, `files`, `checkpoints` and the public modules may call it. It must never allocate node memory: it fills the
blocks that it is given.
"""
