"""Many ranks on one node: what they hold together of one array, where all look at their memory at one moment.

python -m benchmarks.ranks [--counts 2,8,32,128] [--mib 256]
"""

from __future__ import annotations

from typing import Any

import numpy as np

from benchmarks import harness
from benchmarks.harness import Place


def main() -> None:
    """Measures on the ranks of this machine, prints and keeps."""
    options = harness.options(__doc__, counts="2,8,32,128", mib=256)
    if options.inside:
        inside(options.mib << 20)
        return
    memory = {}
    for count in options.counts.split(","):
        memory[count] = Place("", int(count)).run("ranks", "--mib", str(options.mib))
        harness.show(f"{options.mib} MiB for {count} ranks", memory[count])
    harness.keep("ranks", {"memory, MiB": options.mib, "memory": memory})


def inside(nbytes: int) -> None:
    """What all ranks hold more with the array than without it, over the array, by backend."""
    from mpi4py import MPI

    import mpishare as ms

    comm, held = MPI.COMM_WORLD, dict[str, harness.Row]()
    for backend in ("window", "memmap"):
        ms.share(np.ones(nbytes >> 4, np.uint8) if comm.rank == 0 else None, backend=backend)  # what is made once
        before = harness.held(comm)
        array: Any = ms.share(np.ones(nbytes, np.uint8) if comm.rank == 0 else None, backend=backend)
        assert array.sum(dtype=int) == nbytes
        held[backend] = {"held by all ranks, arrays": round((harness.held(comm) - before) / nbytes, 3)}
    harness.tell(comm, held)


if __name__ == "__main__":
    main()
