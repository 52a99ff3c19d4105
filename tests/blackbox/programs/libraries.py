"""Shares what other libraries make of arrays; rank 0 prints what came of it, as JSON.

Of each object: whether its class, its bits and what goes with them are the same on all ranks as it was shared, as a
private one, and as a message; and the memory that all ranks hold of it, over one copy a node, once all have read it.
"""

import gc
import json
import math
import warnings
from importlib.util import find_spec

import numpy as np
import polars as pl
import pyarrow as pa
import xarray as xr
from astropy import units
from astropy.table import MaskedColumn, QTable
from mpi4py import MPI

import mpishare as ms
from mpishare.objects.pickling import pickle_object
from tests.processes import proportional_bytes

comm = MPI.COMM_WORLD
ROWS = 1 << 18
MASK = np.arange(ROWS) % 7 == 0


def numbers(first=0):
    return np.arange(first, first + ROWS, dtype=float)


def quantity():
    return units.Quantity(np.stack([numbers(), numbers(1)]), "km/s", copy=False)


def table():
    columns = {"time": numbers() * units.s, "mass": MaskedColumn(numbers(1), mask=MASK, fill_value=-1.0)}
    return QTable(columns, meta={"of": "today"}, copy=False)


def dataset():
    air = xr.DataArray(numbers(), dims="x", coords={"x": numbers(1)}, attrs={"units": "K"})
    return xr.Dataset({"air": air}, attrs={"of": "today"})


def frame():
    buffers = [pa.py_buffer(np.packbits(~MASK, bitorder="little")), pa.py_buffer(numbers(1))]
    table = pa.table({"a": numbers(), "b": pa.Array.from_buffers(pa.float64(), ROWS, buffers)})
    kind = pl.Series("kind", np.arange(ROWS, dtype=np.uint8) % 3).cat.to(pl.Enum(["x", "y", "z"]))
    return pl.from_arrow(table).with_columns(kind)


def tensors():
    whole = torch.from_numpy(numbers())
    return {"whole": whole, "part": whole[1::2], "leaf": torch.nn.Parameter(torch.from_numpy(numbers(1)))}


def facts(obj):
    """All that tells `obj` from another of its class: arrays, and strings."""
    match obj:
        case units.Quantity():
            return [obj.value, str(obj.unit)]
        case QTable():
            mass = obj["mass"]
            return [*facts(obj["time"]), mass.data.data, mass.mask, f"{mass.fill_value} {obj.meta} {obj.info}"]
        case xr.Dataset():
            return [obj.air.values, obj.x.values, f"{obj.attrs} {obj.air.attrs} {obj.indexes}"]
        case pl.DataFrame():
            return [obj["a"].to_numpy(), obj["b"].fill_null(-1.0).to_numpy(), obj["kind"].cast(str), f"{obj.schema}"]
        case _:
            whole, part, leaf = obj.values()
            same = whole.untyped_storage().data_ptr() == part.untyped_storage().data_ptr()
            return [whole.numpy(), part.numpy(), leaf.detach().numpy(), f"{type(leaf)} {leaf.requires_grad} {same}"]


def collect():
    """Frees what is in cycles, also where one keeps another."""
    while gc.collect():
        pass


def outcome(make):
    collect()
    before = proportional_bytes(comm)
    result = ms.share(make() if comm.rank == 0 else None)
    arrays = pickle_object(result).arrays
    nbytes = sum(array.nbytes for array in arrays if array.sum() < math.inf)  # which reads it
    del arrays
    collect()
    gained = proportional_bytes(comm) - before
    others = [ms.private(result), ms.sendrecv(result, comm.rank)]
    expected = make()
    same = [
        type(obj) is type(expected) and all(map(np.array_equal, facts(obj), facts(expected)))
        for obj in (result, *others)
    ]
    return {"same": comm.allreduce(all(same), MPI.LAND), "memory": gained / nbytes / ms.topology().n_nodes}


warnings.simplefilter("error")
warnings.filterwarnings("ignore", "private.* were copied")
makers = [quantity, table, dataset, frame]
if find_spec("torch"):
    import torch

    makers.append(tensors)
for make in reversed(makers):
    outcome(make)  # what is allocated once is there now
outcomes = {make.__name__: outcome(make) for make in makers}
if comm.rank == 0:
    print(json.dumps(outcomes))
