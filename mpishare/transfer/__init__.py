"""How bytes move within a node and between nodes.

`node_fill` fills the block of every node, within a node by `cma`, between nodes by `pipeline`. `ring` brings the bytes
of each node to all nodes, `node_reduce` reduces them by `operations`, and `rows` has the rows of all ranks. `link`
measures the link between nodes; `plan` and `ring_plan` decide along which path and in what chunks, and know nothing of
MPI. `objects`, `files`, `checkpoints` and the public modules may call it. It must never allocate node memory: it fills
the blocks that it is given.
"""
