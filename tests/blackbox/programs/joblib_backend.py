"""joblib's own tests, and scikit-learn, on the ranks of a job."""

import os
import sys
from pathlib import Path

import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_backend
from mpi4py import MPI

import mpishare as ms
from jobs.ports.figures import used, watched
from mpishare.compat.joblib import register
from tests.originals import source_of

CHANGES = {
    'PROCESS_BACKENDS = ["multiprocessing", "loky"]': 'PROCESS_BACKENDS = ["mpishare"]',
    "RETURN_GENERATOR_BACKENDS = BACKENDS.copy()": 'RETURN_GENERATOR_BACKENDS = {"mpishare": BACKENDS["mpishare"]}',
    'RETURN_GENERATOR_BACKENDS.pop("multiprocessing", None)': "",
    "ALL_VALID_BACKENDS = [None] + sorted(BACKENDS.keys())": 'ALL_VALID_BACKENDS = ["mpishare"]',
    "ALL_VALID_BACKENDS += [BACKENDS[backend_str]() for backend_str in BACKENDS]": "",
    'ALL_VALID_BACKENDS.append(mp.get_context("spawn"))': "pass",
    "task_time = 2.0 / n_inputs": "task_time = 0.2 / n_inputs",
}


def run_tests(comm, folder, args):
    """Runs joblib's tests of backends, with its own ones changed to ours; returns pytest's exit status."""
    sys.path.append(folder)  # where the other ranks find the tasks
    if comm.rank == 0:
        text = source_of("joblib", "test/test_parallel.py")
        for before, after in CHANGES.items():
            assert before in text, before
            text = text.replace(before, after)
        Path(folder, "test_original.py").write_text(text)
    comm.Barrier()
    with register():
        return pytest.main([folder, "-c", os.devnull, "-p", "no:cacheprovider", "-q", "--color=no", *args])


def total_bytes(pids, array):
    """A task: what all ranks together hold, after this one has read an array."""
    array.sum()
    return used(pids)


def growth(pids, arrays):
    """The bytes by which the memory of all ranks grows by tasks that have these arrays."""
    before = used(pids)
    return max(Parallel()(delayed(total_bytes)(pids, array) for array in arrays)) - before


def scores_of(rows, labels):
    """Scores of a forest."""
    from sklearn.ensemble import RandomForestClassifier
    from sklearn.model_selection import cross_val_score

    forest = RandomForestClassifier(5, max_depth=4, random_state=2)
    return cross_val_score(forest, rows[:, :50], labels, cv=3).tolist()


def trees_of(rows, labels):
    """What each tree of a forest says."""
    from sklearn.ensemble import RandomForestClassifier

    forest = RandomForestClassifier(9, max_depth=4, random_state=2).fit(rows, labels)
    return [tree.predict_proba(rows[:50]).tolist() for tree in forest.estimators_]


def compare(comm):
    """Prints how many copies of arrays all ranks hold together, and compares what scikit-learn computes on one rank.

    The copies are those that come on top of the one which is there before.
    """
    pids, own = comm.allgather(os.getpid()), np.ones((1 << 21, 8))
    rows = np.random.default_rng(1).random((2000, 8192), np.float32)
    labels = (rows[:, :3].sum(axis=1) > 1.5).astype(int)
    table, shared_rows = ms.share((own, rows) if comm.rank == 0 else None)
    shared_rows.sum()  # all ranks have its pages, so that none counts twice while the ranks are looked at in turn
    with register(table, shared_rows):
        scores, trees = scores_of(rows, labels), trees_of(rows, labels)
        with parallel_backend("mpishare"):
            before = used(pids)
            for arrays in ([table], [table[:, number : number + 4] for number in range(4)], [own]):
                print(round(growth(pids, arrays * 12) / own.nbytes, 2))
            print(round((used(pids) - before) / own.nbytes, 2))
            assert scores_of(rows, labels) == scores_of(shared_rows, labels) == scores
            for array in (shared_rows, rows):
                with watched(pids) as looks:
                    assert trees_of(array, labels) == trees
                print(round((max(looks) - looks[0]) / rows.nbytes, 2))


if __name__ == "__main__":
    if len(sys.argv) == 1:
        compare(MPI.COMM_WORLD)
    else:
        raise SystemExit(run_tests(MPI.COMM_WORLD, sys.argv[1], sys.argv[2:]))
