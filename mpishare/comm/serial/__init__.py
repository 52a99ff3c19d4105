"""What stands in for mpi4py.MPI where there is no MPI: one rank, in plain Python, under the names of mpi4py.

Of mpishare, only `comm.mpi` imports this folder, and nothing here may start MPI. It has the calls of an
intracommunicator with one rank, for buffers and for objects: messages and collectives, blocking and nonblocking. A
collective copies or does nothing. A message goes to the rank itself, and waits in its communicator until it is
received. A call that would wait for ever raises an error instead.
"""

# ruff: noqa: F403 - the names of this module are those of its files, as in mpi4py.MPI

from mpishare.comm.serial.communicator import *
from mpishare.comm.serial.messages import *
from mpishare.comm.serial.values import *
