"""The collective calls of the public face: one file a call, or a few that are alike.

`share` (and `private`), `creation` (`empty`, `zeros`, `full`), `bcast` (and `fence`, `partition`), `put`, `gather` (and
`scatter`), `allgather`, `allreduce`. Each agrees on its arguments. Those that make an array get node memory, have it
filled by `transfer`, and return a view. `mpishare` itself, `tasks` and `checkpoints` may call it. It must never let a
rank raise alone between two steps of a call.
"""
