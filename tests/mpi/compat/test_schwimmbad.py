"""MPIPool: schwimmbad's own tests on ranks, with the import changed."""

import pickle
import sys
from contextlib import nullcontext

import pytest
from mpi4py import MPI

from mpishare.compat.schwimmbad import MPIPool, choose_pool
from tests.originals import load_text, original

pytestmark = pytest.mark.ranks(2)


def module_of(name):
    """A file of tests of its source archive."""
    text = (original("schwimmbad") / "tests" / f"{name}.py").read_text()
    changes = {"from schwimmbad.mpi": "from mpishare.compat.schwimmbad"}
    shorter = {} if MPI.COMM_WORLD.size == 3 else {"range(1000)": "range(100)"}  # a thousand take seconds
    return load_text(f"original_schwimmbad_{name}", text, changes | shorter)


def ends(comm):
    """The end of the ranks but the master."""
    return pytest.raises(SystemExit) if comm.rank else nullcontext()


def test_mpi(comm):
    test = module_of("test_mpi").test_mpi
    with ends(comm), MPIPool() as pool:
        test(pool)


def test_mpi_with_dill(comm):
    test = module_of("test_mpi_with_dill").test_mpi_with_dill
    with ends(comm):
        test()


def test_mpi_fail(comm):
    """Skipped there. The task's error is that of the master, and the other ranks end."""
    test = module_of("test_mpi_fail").test_mpi_worker_error
    with pytest.raises(SystemExit) if comm.rank else pytest.raises(AttributeError, match="Derp"):
        test()


def test_a_callback_gets_results_in_order_and_an_error_its_class(comm):
    results = []
    with ends(comm), choose_pool(mpi=True, comm=comm) as pool:
        assert pool.map(abs, [-1, 2, -3], results.append) == results == [1, 2, 3]
        assert pool.starmap(pow, [(2, 3), (3, 2)]) == [8, 9]
        with pytest.raises(ZeroDivisionError):
            pool.map(divmod_of, [1, 0])
        assert (pool.is_master(), pool.is_worker(), pool.wait()) == (True, False, None)
        assert pool.batched_map(list, []) == []
        unpickled = pickle.loads(pickle.dumps(pool))
        assert unpickled.map(abs, [-4], results.append) == results[3:] == [4]


def divmod_of(number):
    return divmod(1, number)


def test_one_rank_has_no_mpi_pool(comm):
    with pytest.raises(ValueError, match="two ranks"):
        MPIPool(MPI.COMM_SELF)


def test_schwimmbad_is_needed_for_processes_alone(monkeypatch):
    monkeypatch.setitem(sys.modules, "schwimmbad", None)
    results = []
    with choose_pool() as pool:
        assert pool.map(abs, [-1, 2], callback=results.append) == results == [1, 2]
    with pytest.raises(ImportError, match="schwimmbad"):
        choose_pool(processes=2)
