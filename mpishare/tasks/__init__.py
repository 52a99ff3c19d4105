"""Tasks: a function applied to many items by all ranks (`map`), or for one rank that drives the others (`pool`).

It answers who runs which tasks (`scheduler`), how items and results travel (`items`), how a pool hands out
single calls (`dispatcher`) and which names it has for them (`executor`), and what a failed task does (`errors`). Only
`mpishare` itself calls it. It must never pickle a function with each task.
"""
