"""Objects full of arrays: pickled apart from their arrays, and packed into one segment.

An object becomes a pickle without array bytes (`pickling`) and its arrays (`pickled`), laid out side by side in a
segment (`packing`). `subclasses` and `libraries` say how classes that pickle or copy their arrays are taken apart.
`references` names what the ranks have in node memory already, in place of its bytes. `unshared` notes what each rank
must copy. `private` makes an object again whose arrays this rank may change. `distributed` is an array whose rows are
split over the nodes.
`messages`, `tasks` and `collectives` may call it. It must never pickle the bytes of an array that can be shared.
"""
