"""What another user of the node can do with a job's nameless file and its socket: nothing. For real."""

import errno
import os
import select
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial

import pytest

from mpishare.comm.descriptors import receive, send_to_all, unix_socket
from mpishare.memory.shared_file import memory_file
from tests.processes import error_as

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can start processes of two users")

STRANGER = 65_532


@pytest.fixture
def descriptor():
    """A nameless file, as the leader of a node makes it."""
    file = memory_file(4096)
    yield file.descriptor
    del file


def connect_and_receive(name):
    """What another rank does; raises an OSError where it gets nothing."""
    with ExitStack() as sockets:
        connected = unix_socket(sockets, name)
        assert not isinstance(connected, str)
        connected.setblocking(True)
        if isinstance(receive(connected), str):
            raise OSError(errno.ENODATA, "nothing")


@pytest.mark.parametrize(("user", "number"), [(0, 0), (STRANGER, errno.ENODATA)])
def test_the_file_is_sent_to_this_user_alone(descriptor, user, number):
    name = os.urandom(12)
    with ExitStack() as sockets, ThreadPoolExecutor(1) as others:
        listening = unix_socket(sockets, name, backlog=1)
        assert not isinstance(listening, str)
        ended = others.submit(error_as, user, partial(connect_and_receive, name))
        select.select([listening], [], [], 20)
        send_to_all(listening, descriptor)
        assert ended.result(20) == number


def test_nothing_is_taken_from_a_socket_of_another_user(descriptor):
    name = os.urandom(12)
    with ExitStack() as sockets:
        listening = unix_socket(sockets, name, backlog=1)
        assert not isinstance(listening, str)
        assert error_as(STRANGER, partial(connect_and_receive, name)) == errno.ENODATA
