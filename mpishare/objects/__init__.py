"""Objects full of arrays: pickled apart from their arrays, and packed into one segment.

An object becomes a pickle without array bytes (`pickling`) and its arrays (`pickled`), laid out side by side in a
segment (`packing`). `unshared` notes what each rank must copy. `messages`, `tasks` and `sharing` may call it. It must
never pickle the bytes of an array that can be shared.
"""
