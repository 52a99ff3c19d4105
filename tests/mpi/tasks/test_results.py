"""What an exception in the middle of a message leaves."""

import signal
import sys
import threading
from types import FrameType

import numpy as np
import pytest

import mpishare as ms
from mpishare.comm.communicator import CollectiveComm
from mpishare.comm.context import context_of
from mpishare.comm.in_flight import InFlight
from mpishare.objects.pickling import pickle_object
from mpishare.tasks.results import receive_object, send_object
from tests.signals import is_coverage, outside_coverage

TAG = 1


@pytest.mark.ranks(2)
def test_after_an_exception_in_the_middle_of_a_message_the_communicator_is_refused(comm, configured):
    """Else the rest of the message would come to the next receive, and past the end of its buffer."""
    own = configured(check="0")
    context, own_comm = context_of(own), CollectiveComm(own)
    if comm.rank == 0:
        comm.recv(source=1)
        send_object(context, own_comm, pickle_object(np.zeros(2000, np.uint8)), 1, TAG)
    elif comm.rank == 1:
        usual = signal.signal(signal.SIGALRM, interrupt)
        try:
            threading.Thread(target=signal_within, args=(InFlight.wait_oldest.__code__, comm)).start()
            with pytest.raises(ValueError, match="of a handler"):
                receive_object(context, own_comm, 0, TAG)
        finally:
            signal.signal(signal.SIGALRM, usual)
    with pytest.raises(ms.MpishareError, match="out of step" if comm.rank == 1 else "rank 1"):
        ms.zeros(3, comm=own)


@outside_coverage
def interrupt(*_):
    raise ValueError("of a handler")


def signal_within(code, comm):
    """Sends a signal to the main thread while it is in a function, and then has rank 0 send."""
    main, is_within = threading.main_thread().ident or 0, False
    while not is_within:
        frame: FrameType | None = sys._current_frames()[main]
        if is_coverage(frame):
            continue
        while frame is not None and not is_within:
            is_within, frame = frame.f_code is code, frame.f_back
    signal.pthread_kill(main, signal.SIGALRM)
    comm.send(None, 0)
