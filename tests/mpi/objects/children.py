"""What processes run that are not ranks. Nothing here may need MPI."""

import subprocess
import sys
from multiprocessing import get_context
from threading import Barrier, Thread

import mpishare as ms

LIMIT_S = 120
"""How long a child may take to start on a busy machine."""


def ask(method, function, *args):
    """What `function` returns in a child that is started by this method."""
    context = get_context(method)
    reader, writer = context.Pipe(duplex=False)
    process = context.Process(target=_answer, args=(writer, function, args))
    process.start()
    writer.close()
    try:
        assert reader.poll(LIMIT_S)
        return reader.recv()
    finally:
        reader.close()
        process.join()
        assert process.exitcode == 0
        process.close()


def _answer(writer, function, args):
    writer.send(function(*args))


def look(handle):
    """The sum of an array, whether it can be written, whether this process has mpi4py, and what mpishare says here."""
    barrier, arrays = Barrier(4), []

    def get():
        barrier.wait()
        arrays.append(handle.get())

    threads = [Thread(target=get) for _ in range(barrier.parties)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    array = handle.get()
    assert all(one is array for one in arrays)
    try:
        ms.zeros(3)
        said = ""
    except ms.ArgumentError as error:
        said = str(error)
    return float(array.sum()), array.flags.writeable, "mpi4py" in sys.modules, said


def pass_on(handle):
    """The sum of an array in a child of this process."""
    return ask("spawn", total, handle)


def total(handle):
    """The sum of an array."""
    return float(handle.get().sum())


def again_private(handle):
    """What a copy-on-write view of an array has, and then the array, once the view was changed."""
    array = handle.get()
    view = ms.private(array)
    view[0] += 1
    return float(view[0]), float(array[0])


def keep(writer, reader, handle):
    """Holds a handle before its array is looked at, as told."""
    writer.send("has it")
    assert reader.recv() == "look"
    writer.send(bool((handle.get() == -1).all()))


EXPLAIN = """
import pickle, sys
handle = pickle.load(sys.stdin.buffer)
try:
    print(handle.get().sum())
except Exception as error:
    print(type(error).__name__, error)
"""


def said_by(handle, *before):
    """What another process says that gets pickled bytes, started by the words `before`."""
    command = [*before, sys.executable, "-c", EXPLAIN]
    return subprocess.run(command, input=handle, capture_output=True, check=True, timeout=LIMIT_S).stdout.decode()
