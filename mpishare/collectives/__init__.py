"""The calls of the public face that make arrays, keep them in step and tell of them: one file for each, or for a few.

`share` (and `private`), `creation` (`empty`, `zeros`, `ones`, `full`, and those like an array), `bcast` (and `fence`),
`put`, `partition` (and `rows`), `gather` (and `scatter`), `allgather`, `allreduce`, `distribute`, `report`, `info` (and
`configure`). A collective agrees on its arguments (`arguments`). Those that make an array get node memory, have it
filled by `transfer`, and return a view. `mpishare` itself, `tasks`, `files` and `checkpoints` may call it. It must
never let a rank raise alone between two steps of a call.
"""
