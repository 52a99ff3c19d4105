"""How bytes move within a node and between nodes.

`node_fill` fills the block of every node. `between_nodes` decides whether bytes travel along a chain of the nodes or by
one MPI_Bcast of the leaders. `rows` has the rows of all ranks, and `reduce` reduces arrays. `objects`, `files`,
`checkpoints`, `messages` and `collectives` may call it. It must never allocate node memory: it fills the blocks that it
is given.
"""
