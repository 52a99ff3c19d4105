"""Calls mpishare in processes that the ranks start, in each way, and prints what comes of it."""

import multiprocessing
import subprocess
import sys
from functools import partial
from typing import Any

import numpy as np

import mpishare as ms

LINE = [sys.executable, "-m", __spec__.name if __spec__ else __name__, "child"]
CALLS: Any = {"share": lambda: ms.share(np.ones(3), comm=ms.SELF), "topology": ms.topology, "info": ms.info}


def outcomes():
    """The errors of calls in this process."""
    texts = []
    for call in CALLS.values():
        try:
            texts.append(f"nothing but {call()}")
        except ms.ArgumentError as error:
            texts.append(str(error))
    return texts


def by_multiprocessing(method):
    with multiprocessing.get_context(method).Pool(1) as pool:
        return pool.apply_async(outcomes).get(60)


def by_subprocess(*prefix):
    return subprocess.run([*prefix, *LINE], capture_output=True, text=True, timeout=60).stdout.splitlines()


IN_A_SHELL = partial(by_subprocess, "sh", "-c", '"$@"; true', "sh")
WAYS: Any = [*(partial(by_multiprocessing, method) for method in ("spawn", "forkserver", "fork")), IN_A_SHELL]


def main():
    from mpi4py import MPI

    comm = MPI.COMM_WORLD
    # Before the first call of mpishare in a rank, and after it.
    for way in (partial(by_multiprocessing, "fork"), by_subprocess, None, *WAYS):
        if way is None:
            ms.topology()
        else:
            found = way()
            assert [" is not a rank of its own" in text for text in found] == [True] * len(CALLS), (way, found)
    print(f"rank {comm.rank} of {ms.topology().size}", flush=True)
    comm.Barrier()


if __name__ == "__main__":
    print("\n".join(outcomes())) if sys.argv[1:] == ["child"] else main()
