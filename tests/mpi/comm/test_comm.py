"""What is kept of a communicator: its nodes, the entry of every collective, and one rank's error made every rank's."""

import pickle
import re
import signal
from contextlib import suppress
from dataclasses import FrozenInstanceError
from itertools import combinations, count, product

import numpy as np
import pytest
from mpi4py import MPI

import mpishare as ms
from mpishare.collectives.allreduce import CALLS_WITHOUT_MEMORY
from mpishare.comm import mpi
from mpishare.comm.agreement import Deferred, agree, is_known
from mpishare.comm.alone import alone, blocks
from mpishare.comm.collective import collective
from mpishare.comm.context import context_of
from mpishare.comm.topology import Placement, pretend_node
from mpishare.config import Config
from mpishare.errors import name_ranks
from mpishare.files.errors import file_errors
from mpishare.memory.backends import kernel_errors
from tests.everything import everything


@pytest.mark.parametrize("part", ["all", "reversed", "every other rank", "one rank"])
def test_nodes_are_those_of_mpi_or_as_the_rule_of_pretend_nodes_says(part, comm, monkeypatch):
    """Of some ranks of MPI_COMM_WORLD, which know each other's nodes already, nothing is asked."""
    rule, world = context_of().config.nodes, comm
    colors = {"every other rank": world.rank % 2, "one rank": world.rank}
    comm = world if part == "all" else world.Split(colors.get(part, 0), -world.rank)
    hosts = comm.allgather(MPI.Get_processor_name())
    monkeypatch.setattr(mpi, "COMM_TYPE_SHARED", None)
    labels = hosts if rule is None else comm.allgather(pretend_node(rule, world.rank, world.size))
    placement, nodes = Placement.from_labels(labels), ms.topology(comm)
    assert (nodes.comm, nodes.rank, nodes.size, nodes.placement) == (comm, comm.rank, comm.size, placement)
    names = tuple(hosts[ranks[0]] + ("" if rule is None else f"~{labels[ranks[0]]}") for ranks in placement.nodes)
    assert (nodes.hosts, nodes.n_nodes) == (names, len(names))
    node = placement.node_of[comm.rank]
    ranks = placement.nodes[node]
    assert (nodes.node, nodes.host, nodes.ranks_of(node)) == (nodes.node_of(comm.rank), names[node], ranks)
    assert (nodes.node_size, nodes.node_rank) == (len(ranks), ranks.index(comm.rank))
    assert nodes.is_leader == (nodes.leaders != MPI.COMM_NULL) == (comm.rank == ranks[0])
    assert nodes.node_comm.allgather(comm.rank) == list(ranks)
    on_rail = [others[nodes.node_rank] for others in placement.nodes if len(others) > nodes.node_rank]
    assert nodes.rail.allgather(comm.rank) == on_rail
    if nodes.is_leader:
        assert nodes.leaders.allgather(comm.rank) == [ranks[0] for ranks in placement.nodes]
    assert repr(nodes).startswith(f"<Topology of {comm.size} ranks on {len(names)} nodes ({names[0]}: 0")
    with pytest.raises(FrozenInstanceError):
        nodes.node = 1  # type: ignore[misc]
    if part != "all":
        comm.Free()


def test_each_communicator_is_asked_once_and_has_its_own_freed_with_it(comm):
    assert ms.topology(comm) is ms.topology()
    first = comm.Dup()
    index = first.py2f()
    first.Free()
    for number in range(50):
        duplicate = comm.Dup()
        context = context_of(duplicate)
        assert context.topology is not ms.topology(comm)
        key = context.new_keys()
        assert key != context_of(comm).new_keys()
        assert len(set(comm.allgather(key))) == 1
        if number == 0 and context.topology.n_nodes > 1:
            context.topology.node_comm.Free()
        duplicate.Free()
        assert context.data_comm == context.head_comm == context.topology.node_comm == MPI.COMM_NULL
    last = comm.Dup()
    assert last.py2f() == index
    last.Free()


def test_where_mpi_has_no_communicator_left_all_ranks_hear_how_to_get_one(comm, raised):
    """MPICH has 2,048 of them. What is left is used up, and given back one by one until a context can be made."""
    user, spare = comm.Dup(), []
    has_limit = MPI.get_vendor()[0] == "MPICH"
    with suppress(MPI.Exception):
        while has_limit or len(spare) < 5:
            spare.append(comm.Dup())
    refusals = 0
    while (errors := raised(lambda: ms.share(1, comm=user)))[0][0] != "nothing":
        assert all(error == "BackendError" and "free those that are no longer used" in text for error, text in errors)
        spare.pop().Free()
        refusals += 1
    assert (refusals > 1) == has_limit
    assert ms.share(2, comm=user) == 2
    for each in [*spare, user]:
        each.Free()


OVER_ALL = {
    "share": lambda comm, array, folder: ms.share(1, comm=comm),
    "zeros": lambda comm, array, folder: ms.zeros(3, comm=comm),
    "bcast": lambda comm, array, folder: ms.bcast(array, comm=comm),
    "put": lambda comm, array, folder: ms.put(array, 0, 1.0, comm=comm),
    "allreduce": lambda comm, array, folder: ms.allreduce(np.ones(2), comm=comm),
    "allgather": lambda comm, array, folder: ms.allgather(np.ones(2), comm=comm),
    "gather": lambda comm, array, folder: ms.gather(np.ones(2), comm=comm),
    "scatter": lambda comm, array, folder: ms.scatter(np.ones(2), comm=comm),
    "load": lambda comm, array, folder: ms.load(folder / "a.npy", comm=comm),
    "save": lambda comm, array, folder: ms.save(folder / "a.npy", np.ones(2), comm=comm),
    "Checkpoint": lambda comm, array, folder: ms.Checkpoint(folder, comm=comm),
    "map": lambda comm, array, folder: ms.map(abs, [1], comm=comm),
    "Pool": lambda comm, array, folder: ms.Pool(comm),
    "fence everywhere": lambda comm, array, folder: ms.fence(comm=comm, scope="all"),
    "info": lambda comm, array, folder: ms.info(probe=True, comm=comm),
}
OVER_A_NODE = {"fence": lambda comm, array, folder: ms.fence(comm=comm)}


@pytest.mark.ranks(2)
@pytest.mark.parametrize("check", ["0", "1"])
def test_all_ranks_hear_of_two_different_calls(check, configured, shared_folder, raised):
    """Ranks of one node that call different collectives, with MPISHARE_CHECK=1, and go on; or nodes that do, without.

    Outcome: MismatchError on all ranks of the node, with each call, its file and line; PeerError with the same text on
    the other nodes; the next call works.
    """
    duplicate = configured(check=check)
    array, nodes, calls = ms.zeros(3, comm=duplicate), ms.topology(duplicate), OVER_ALL | OVER_A_NODE
    ms.save(shared_folder / "a.npy", np.ones(2), comm=duplicate)
    is_odd = nodes.node == 0 if nodes.n_nodes > 1 and check == "0" else nodes.rank == 0
    pairs = list(combinations(OVER_ALL, 2))
    is_within_node = check == "1" and len(nodes.ranks_of(0)) > 1  # else rank 0 is the node
    if is_within_node:
        pairs += product(OVER_A_NODE, OVER_ALL)
    for odd, usual in pairs:
        errors = raised(lambda call=calls[odd if is_odd else usual]: call(duplicate, array, shared_folder))
        own = nodes.ranks_of(0) if is_within_node else range(nodes.size)
        classes = ["MismatchError" if rank in own else "PeerError" for rank in range(nodes.size)]
        assert [error for error, _ in errors] == classes, (odd, usual, errors)
        for name in (odd, usual):
            assert all(re.search(rf"{name.split()[0]}.* at .*test_comm.py:\d+", text) for _, text in errors), errors
        assert ms.share(nodes.rank, comm=duplicate) == 0


def test_no_call_sends_messages_on_a_communicator_that_users_see(duplicate, shared_folder):
    """They would come to a receive from any rank with any tag."""
    nodes, names = ms.topology(duplicate), set()
    visible = [duplicate] if nodes.n_nodes == 1 else [duplicate, nodes.node_comm, nodes.rail]
    requests = [comm.irecv(source=MPI.ANY_SOURCE, tag=MPI.ANY_TAG) for comm in visible]

    class Recording:
        def __getattr__(self, name):
            names.add(name)
            return getattr(ms, name)

    for _ in everything(Recording(), duplicate, shared_folder):
        pass
    calls = {name for name in ms.__all__ if callable(getattr(ms, name)) and name.islower()}
    assert calls | {"Checkpoint", "Pool"} <= names | {"configure"}  # which is local, and comes first of all
    assert not any(request.Test() for request in requests)
    for comm, request in zip(visible, requests, strict=True):
        comm.send("own", comm.rank)
        assert request.wait() == "own"


@pytest.mark.parametrize("name", ["share", "load", "map", "fence"])
def test_a_call_that_an_exception_ended_on_one_rank_is_the_last_on_its_communicator(
    name, duplicate, shared_folder, raised
):
    array, last = ms.zeros(3, comm=duplicate), duplicate.size - 1
    ms.save(shared_folder / "a.npy", np.ones(2), comm=duplicate)
    with suppress(KeyboardInterrupt), collective("call", duplicate) as call:
        call.agree("")
        if duplicate.rank == last:
            raise KeyboardInterrupt
    errors = raised(lambda: (OVER_ALL | OVER_A_NODE)[name](duplicate, array, shared_folder))
    nodes = ms.topology(duplicate)
    others = [rank for rank in range(last) if name in OVER_ALL or rank in nodes.ranks_of(nodes.node_of(last))]
    classes = {**dict.fromkeys(others, "PeerError"), last: "MpishareError"}
    assert [error for error, _ in errors] == [classes.get(rank, "nothing") for rank in range(last + 1)]
    assert all("out of step" in errors[rank][1] for rank in classes)


@pytest.mark.ranks(2)
def test_an_error_that_one_node_knows_leaves_the_ranks_out_of_step(duplicate):
    nodes = ms.topology(duplicate)
    with pytest.raises((ValueError, ms.PeerError)), collective("call", duplicate) as call:
        call.agree("")
        with agree(call.context.node_collective_comm):
            if nodes.is_leader:
                raise ValueError
    assert call.context.is_out_of_step == (nodes.n_nodes > 1)


def test_a_call_within_a_call_is_refused_and_leaves_the_outer_one_whole(duplicate):
    with collective("outer", duplicate) as call:
        call.agree("")
        before = signal.signal(signal.SIGALRM, lambda *_: ms.zeros(1, comm=duplicate))
        with pytest.raises(ms.MpishareError, match=r"zeros was called while this rank is in outer .* signal handler"):
            signal.raise_signal(signal.SIGALRM)
        signal.signal(signal.SIGALRM, before)
        call.allow_nested_calls()
        assert ms.zeros(1, comm=duplicate)[0] == 0
    assert ms.zeros(1, comm=duplicate)[0] == 0


def test_a_call_of_a_handler_within_the_first_call_is_refused(duplicate, monkeypatch):
    seen = []
    before = signal.signal(signal.SIGALRM, lambda *_: seen.append(call_in_handler()))

    def call_in_handler():
        with pytest.raises(ms.MpishareError, match=r"the first call on this communicator has not ended on this rank"):
            ms.zeros(1, comm=duplicate)

    def interrupted():
        monkeypatch.undo()
        signal.raise_signal(signal.SIGALRM)
        return Config.read()

    monkeypatch.setattr(Config, "read", interrupted)
    ms.topology(duplicate)
    signal.signal(signal.SIGALRM, before)
    assert seen == [None]
    assert ms.zeros(1, comm=duplicate)[0] == 0


@pytest.mark.once
@pytest.mark.ranks(2)
def test_a_communicator_whose_first_call_stalled_stays_refused(duplicate, comm, monkeypatch):
    """The first call on a communicator, to which a rank does not come.

    Outcome: StallError: which call, its file and line.
    """
    monkeypatch.setenv("MPISHARE_TIMEOUT", "0.5")
    late = comm.size - 1
    for is_first in (True, False):
        if comm.rank != late or not is_first:
            with pytest.raises(ms.StallError, match=r"topology at .*test_comm.py:\d+, on rank"):
                ms.topology(duplicate)
        comm.Barrier()


@pytest.mark.once
@pytest.mark.ranks(2)
@pytest.mark.parametrize("named", [file_errors("rows.npy"), kernel_errors("memmap", "host", 9)], ids=["file", "kernel"])
def test_an_exception_from_outside_keeps_its_class(configured, comm, named):
    """A handler that raises a TimeoutError, which is an OSError, while other ranks are in a collective of the block."""
    ours = context_of(configured(timeout="0.5")).collective_comm
    with pytest.raises(TimeoutError if comm.rank == 0 else ms.StallError) as caught, agree(ours), named:
        ours.barrier()
        if comm.rank == 0:
            raise TimeoutError
    assert type(caught.value) in (TimeoutError, ms.StallError)


@pytest.mark.once
@pytest.mark.ranks(2)
def test_an_exception_from_outside_before_a_collective_is_no_error_of_the_block(configured, comm):
    """The other ranks may be in the collective that this one has not begun yet."""
    ours = context_of(configured(timeout="0.5")).collective_comm
    with pytest.raises(KeyboardInterrupt if comm.rank == 0 else ms.StallError), agree(ours):
        work = Deferred()
        if comm.rank == 0:
            raise KeyboardInterrupt
        ours.barrier()
        work.raise_first()


@pytest.mark.once
@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["allgather", "allreduce"])
def test_an_exception_from_outside_before_the_barrier_of_a_call_cuts_its_rank_off(configured, comm, monkeypatch, name):
    """With few bytes these calls end in a barrier: the others may be in it, and come to no agreement."""
    ours, last = configured(timeout="0.5"), comm.rank == comm.size - 1
    rows, context = np.ones((1, 2)), context_of(ours)
    out = ms.zeros((comm.size if name == "allgather" else 1, 2), comm=ours)
    for _ in range(CALLS_WITHOUT_MEMORY):
        getattr(ms, name)(rows, out=out, comm=ours)
    barrier, numbers = context.node_collective_comm.barrier, count()
    number_of_last = int(name == "allgather" and context.topology.n_nodes > 1)

    def interrupted():
        if next(numbers) == number_of_last:
            raise KeyboardInterrupt
        barrier()

    if last:
        monkeypatch.setattr(context.node_collective_comm, "barrier", interrupted)
    with pytest.raises(KeyboardInterrupt) if last else suppress(ms.StallError):
        getattr(ms, name)(rows, out=out, comm=ours)
    assert context.is_cut_off or not last


@pytest.mark.once
@pytest.mark.ranks(2)
@pytest.mark.parametrize("name", ["allgather", "allreduce", "gather", "scatter", "put"])
def test_an_exception_from_outside_right_after_the_agreement_of_a_small_call_cuts_its_rank_off(
    configured, comm, monkeypatch, name
):
    """The others may be in the collective of MPI that follows, in no agreement."""
    ours, last = configured(timeout="0.5", nodes=None), comm.rank == comm.size - 1
    rows, context = np.ones((1, 2)), context_of(ours)
    grid = ms.zeros((comm.size if name == "allgather" else 1, 2), comm=ours)

    def call():
        if name == "put":
            ms.put(grid, 0, 1.0, comm=ours)
        elif name == "scatter":
            ms.scatter(np.ones((comm.size, 2)), comm=ours)
        else:
            getattr(ms, name)(rows, comm=ours, **({} if name == "gather" else {"out": grid}))

    for _ in range(CALLS_WITHOUT_MEMORY):
        call()
    agree_on_arguments = collective.agree

    def interrupted(*args):
        agree_on_arguments(*args)
        raise KeyboardInterrupt

    if last:
        monkeypatch.setattr(collective, "agree", interrupted)
    with pytest.raises(KeyboardInterrupt) if last else suppress(ms.StallError):
        call()
    assert context.is_cut_off or not last


@pytest.mark.once
@pytest.mark.ranks(2)
def test_ranks_that_come_late_get_what_those_that_gave_up_had_sent(configured, comm):
    """What a rank sends after a StallError does not reach the agreement that it gave up."""
    for late in range(comm.size):
        ours, results = context_of(configured(timeout="0.5")).collective_comm, []
        if comm.rank == late:
            comm.Barrier()
        for data in (b"\1" * 80, b"\2" * 80):
            with suppress(ms.StallError):
                results.append(ours.allreduce_or(data))
        if comm.rank != late:
            comm.Barrier()
        comm.Barrier()
        assert results == ([b"\1" * 80, b"\2" * 80] if comm.rank == late else [])


@pytest.fixture
def ours(duplicate):
    """The collective communicator of a duplicate."""
    return context_of(duplicate).collective_comm


class Mute(Exception):
    """An error without a text, to which nothing can be assigned."""

    def __str__(self):
        raise ValueError

    __setattr__ = None  # type: ignore[assignment, misc]


@pytest.mark.parametrize("kind", [ValueError, KeyboardInterrupt, Mute])
def test_each_rank_and_its_followers_fail(ours, comm, kind):
    """An exception inside a collective: bad input, no room, a missing file.

    Outcome: its own error there, PeerError elsewhere.
    """
    hosts = comm.allgather(MPI.Get_processor_name())
    for first, last in [(rank, rank) for rank in range(ours.size)] + [(1, ours.size - 1)] * (ours.size > 1):
        has_failed = first <= ours.rank <= last
        with pytest.raises(kind if has_failed else ms.PeerError) as caught, agree(ours) as agreement:
            agreement.call = f"call {ours.rank}"  # a failure goes before a difference
            if has_failed:
                raise kind("the disk is full")
        assert is_known(caught.value, ours.size)
        if isinstance(caught.value, ms.PeerError):
            assert (caught.value.rank, caught.value.others, caught.value.host) == (first, last - first, hosts[first])
            text = ", whose text cannot be made" if kind is Mute else ": the disk is full"
            assert caught.value.reason == kind.__name__ + text
            assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)
    with agree(ours):
        pass


@pytest.mark.ranks(3)
@pytest.mark.parametrize("n_texts", [2, 99])
def test_errors_that_differ_are_told_with_their_ranks(ours, n_texts):
    """In a few lines, on the rank with the first and on those without one."""
    with pytest.raises((ValueError, ms.PeerError)) as caught, agree(ours):
        if ours.rank:
            raise ValueError(f"{ours.rank % n_texts}\nand more")
    ranks_of = {}
    for rank in range(1, ours.size):
        ranks_of.setdefault(rank % n_texts, []).append(rank)
    others = [f"{name_ranks(ranks)}: ValueError: {number}" for number, ranks in ranks_of.items()][1:]
    expected = "; ".join([*others[:3], *([f"{len(others) - 3} other errors"] if len(others) > 3 else [])])
    assert vars(caught.value)["other_errors"] == expected
    if isinstance(caught.value, ms.PeerError):
        assert caught.value.rank == 1
        assert str(caught.value).endswith(f"(and {ours.size - 2} more ranks failed; {expected})")


@pytest.mark.ranks(2)
def test_an_error_of_one_node_is_told_by_its_own_rank(duplicate):
    """Not by the ranks of the node, which have a PeerError."""
    outer, inner = context_of(duplicate).collective_comm, context_of(duplicate).node_collective_comm
    last = duplicate.size - 1
    with pytest.raises((ValueError, ms.PeerError)) as caught, agree(outer), agree(inner):
        if duplicate.rank == last:
            raise ValueError("no room")
    if isinstance(caught.value, ms.PeerError):
        assert (caught.value.rank, caught.value.others) == (last, 0)


def test_a_block_that_never_began_ends_without_a_word():
    """Its reference goes while another block is on. What a callback raises there is an error of the test."""
    with alone(MPI.COMM_SELF, "within a test"):
        before = list(blocks)
        alone(MPI.COMM_SELF, "nowhere")
        assert list(blocks) == before
