"""Objects full of arrays: pickled apart from their arrays (`pickling`), and packed into one segment (`packing`).

`messages`, `tasks` and `sharing` may call it. It must never pickle the bytes of an array that can be shared.
"""
