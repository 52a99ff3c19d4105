"""Random programs that share, view, drop, fork and refer, against what the same calls give by bytes.

mpiexec -n 3 python -m mpi4py -m tests.blackbox.programs.random_references SEED SECONDS

All ranks draw the same plan. Of each array a rank has what it must hold, in memory of its own; and a view of node
memory, unless it is not in the communicator, or has dropped it.
"""

import gc
from functools import partial
from typing import Any

import numpy as np

import mpishare as ms
from tests.arrays import DTYPES, assert_same, bits
from tests.blackbox.programs.random_calls import WORLD, draw_array, run
from tests.processes import in_child

CHOSEN = [DTYPES[name] for name in ["f8", "i4", ">c16", "U3", "M8[ns]", "struct", "titles", "foreign", "?"]]
MOST_ARRAYS, MOST_MODELS = 40, 6
arrays: dict[int, tuple[Any, Any]] = {}
"""By number, the view of node memory or None, and what it must hold."""
models: dict[int, tuple[Any, Any]] = {}
"""By number, the object from share or None, and what its table must hold."""


class Model:
    """An object whose state is in its attributes."""

    def __init__(self, table, factor):
        self.table = table
        self.factor = factor

    def at(self, item):
        return self.table[item], self.factor

    def __call__(self, item):
        return bits(self.table[item:]), self.factor


def draw_number(rng):
    """A number that no other array or object has."""
    return int(rng.integers(1 << 60))


def view_of(rng, array, other):
    """The same view of both: reversed, strided, a part, transposed, broadcast, or empty."""
    kind, cut = rng.integers(8), int(rng.integers(4))
    views = [
        lambda a: a, lambda a: a[::-1], lambda a: a[cut:], lambda a: a[cut::2], lambda a: a.T, lambda a: a[:0],
        lambda a: np.broadcast_to(a, (2, *a.shape)), lambda a: a[..., -1:],
    ]  # fmt: skip
    view = views[kind] if array.ndim else views[0]
    return view(array), view(other)


def drop(rng, among):
    """Some ranks drop some of what they have."""
    for number in list(among):
        if rng.random() < 0.1:
            who = rng.random(WORLD.size) < 0.5
            if who[WORLD.rank]:
                among[number] = (None, among[number][1])
    while len(among) > (MOST_ARRAYS if among is arrays else MOST_MODELS):
        among.pop(list(among)[rng.integers(len(among))])


def make(rng, comm):
    """An array in node memory, in one of the ways that there are."""
    expected, root, kind = draw_array(rng, CHOSEN, 1 << 12), int(rng.integers(1 << 20)) % comm.size, rng.integers(6)
    own = expected if comm.rank == root else None
    if kind < 2:
        array = ms.share(own, root=root, comm=comm, backend=[None, None, "memmap", "private"][rng.integers(4)])
    elif kind == 2 and expected.ndim and len(expected) >= WORLD.size:
        array = ms.allgather(np.array_split(expected, comm.size)[comm.rank], comm=comm)
        expected = np.ascontiguousarray(expected)
    elif kind == 3:
        array = ms.share({"a": own, "b": 1} if comm.rank == root else None, root=root, comm=comm)["a"]
    elif kind == 4:
        array = ms.share(own, root=root, comm=comm, writable=[True, "private"][rng.integers(2)])
    else:
        expected = np.arange(int(rng.integers(1, 3000))) * 3
        array = ms.allreduce(expected if comm.rank == 0 else expected * 0, comm=comm)
    assert_same(array, expected)
    arrays[draw_number(rng)] = array, expected


def chosen(rng, n):
    """Some arrays with views of them, as this rank has them and as they must be."""
    picks = [list(arrays)[i] for i in rng.integers(len(arrays), size=n)]
    pairs = []
    for pick in picks:
        array, expected = arrays[pick]
        pairs.append(view_of(rng, expected if array is None else array, expected))
    return pairs


def refer(rng, comm):
    """An object of arrays that some ranks have."""
    pairs, root = chosen(rng, int(rng.integers(1, 6))), int(rng.integers(1 << 20)) % comm.size
    number = draw_number(rng)
    given = {"list": [array for array, _ in pairs], "tuple": (pairs[0][0], number)}
    found = ms.share(given if comm.rank == root else None, root=root, comm=comm)
    for array, (_, expected) in zip(found["list"], pairs, strict=True):
        assert_same(array, expected)
    assert found["tuple"][1] == number
    assert found["tuple"][0] is found["list"][0]
    if rng.random() < 0.5:
        arrays[number] = found["list"][-1], pairs[-1][1]


def model(rng, comm):
    """An object, shared; then changed on some ranks, or in an object of another call."""
    ((table, expected),), root = chosen(rng, 1), int(rng.integers(1 << 20)) % comm.size
    number = draw_number(rng)
    found = ms.share(Model(table, number) if comm.rank == root else None, root=root, comm=comm)
    assert_same(found.table, expected)
    models[number] = found, expected


def known_model(rng):
    """A shared object as this rank has it, or one that is made anew, and what it must hold."""
    picked = list(models)[rng.integers(len(models))] if models else None
    ((table, expected),) = chosen(rng, 1)
    if picked is None:
        factor = int(rng.integers(100))
        return Model(table, factor), expected, factor
    mine, expected = models[picked]
    return Model(expected, picked) if mine is None else mine, expected, picked


def tasks(rng, comm):
    """Tasks with state in node memory, results that are views, items that carry views."""
    root, n, kind = int(rng.integers(1 << 20)) % comm.size, int(rng.integers(1, 9)), rng.integers(4)
    function, expected, factor = known_model(rng)
    gather = ["root", "all"][rng.integers(2)]
    if expected.ndim == 0:
        return
    if kind == 0:
        found = ms.map(function, range(n), root=root, comm=comm, gather=gather, chunk=1)
        wanted = [(bits(expected[item:]), factor) for item in range(n)]
        assert found is None or list(found) == wanted, (found, wanted)
    elif kind == 1:
        found = ms.map(partial(part_of, function), range(n), root=root, comm=comm, gather=gather, chunk=1)
        for item, array in enumerate(() if found is None else found):
            assert_same(array, expected[item:])
    else:
        pairs = chosen(rng, n)
        items = [(item, array) for item, (array, _) in enumerate(pairs)]
        found = ms.map(second_of, items if kind == 2 else iter(items), root=root, comm=comm, gather=gather)
        for array, (_, wanted) in zip([] if found is None else found, pairs, strict=False):
            assert_same(array, wanted)


def part_of(function, item):
    return function.table[item:]


def second_of(item):
    return item[1]


def pool(rng, comm):
    """Single calls and maps of a pool."""
    function, expected, factor = known_model(rng)
    pairs = chosen(rng, 4)
    with ms.Pool(comm=comm) as workers:
        if workers is not None and expected.ndim:
            for found in [workers.map(function, range(3)), list(workers.imap(function, range(3)))]:
                assert found == [(bits(expected[item:]), factor) for item in range(3)]
            for array, wanted in pairs:
                assert_same(workers.submit(second_of, (0, array)).result(), wanted)


def fork(rng, comm):
    """A child of some ranks sees what was there."""
    if rng.random() < 0.3 and rng.random(WORLD.size)[WORLD.rank] < 0.5:
        pairs = [pair for pair in arrays.values() if pair[0] is not None]
        assert in_child(lambda: any(bits(array) != bits(wanted) for array, wanted in pairs)) == 0


CALLS = [make, make, make, refer, refer, refer, refer, model, tasks, tasks, tasks, pool, fork]


def settle(rng):
    """Some ranks drop some of what they have; what is left is compared now and then."""
    drop(rng, arrays)
    drop(rng, models)
    if rng.random() < 0.1:
        gc.collect()
        for array, expected in arrays.values():
            assert array is None or bits(array) == bits(expected), "it has changed"


if __name__ == "__main__":
    make(np.random.default_rng(1), WORLD)
    run(CALLS, settle)
