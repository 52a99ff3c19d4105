"""Live objects, which threads add and delete while another one goes through them."""

import gc
import threading

from mpishare.comm.live import LiveObjects


class Thing:
    """An object that can be referred to weakly."""


def test_they_are_here_as_long_as_they_live():
    live = LiveObjects[Thing]()
    first, second, third = Thing(), Thing(), Thing()
    for thing in (first, second, third, second):
        live.add(thing)
    assert live.all() == [first, second, third]
    live.discard(second)
    live.discard(Thing())
    assert live.all() == [first, third]
    del first
    gc.collect()
    assert live.all() == [third]


def test_threads_may_add_and_delete_at_the_same_time():
    live, has_ended = LiveObjects[Thing](), threading.Event()

    def change():
        kept = []
        while not has_ended.is_set():
            kept = [*kept[-50:], Thing()]
            live.add(kept[-1])

    threads = [threading.Thread(target=change) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(3000):
            assert None not in live.all()
    finally:
        has_ended.set()
        for thread in threads:
            thread.join()
