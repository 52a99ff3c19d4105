"""The names of `mpishare`, for type checkers and editors; `__init__.py` imports each at its first use."""

from mpishare.checkpoints.checkpoint import Checkpoint as Checkpoint
from mpishare.checkpoints.checkpoint import Snapshot as Snapshot
from mpishare.collectives.allgather import allgather as allgather
from mpishare.collectives.allreduce import allreduce as allreduce
from mpishare.collectives.bcast import bcast as bcast
from mpishare.collectives.bcast import fence as fence
from mpishare.collectives.creation import empty as empty
from mpishare.collectives.creation import empty_like as empty_like
from mpishare.collectives.creation import full as full
from mpishare.collectives.creation import full_like as full_like
from mpishare.collectives.creation import ones as ones
from mpishare.collectives.creation import zeros as zeros
from mpishare.collectives.creation import zeros_like as zeros_like
from mpishare.collectives.distribute import distribute as distribute
from mpishare.collectives.gather import gather as gather
from mpishare.collectives.gather import scatter as scatter
from mpishare.collectives.info import Info as Info
from mpishare.collectives.info import configure as configure
from mpishare.collectives.info import info as info
from mpishare.collectives.partition import partition as partition
from mpishare.collectives.partition import rows as rows
from mpishare.collectives.put import put as put
from mpishare.collectives.report import Report as Report
from mpishare.collectives.report import report as report
from mpishare.collectives.share import private as private
from mpishare.collectives.share import share as share
from mpishare.comm.context import topology as topology
from mpishare.comm.mpi import HAS_MPI as HAS_MPI
from mpishare.comm.mpi import SELF as SELF
from mpishare.comm.topology import Topology as Topology
from mpishare.errors import ArgumentError as ArgumentError
from mpishare.errors import BackendError as BackendError
from mpishare.errors import CapacityError as CapacityError
from mpishare.errors import FileError as FileError
from mpishare.errors import LaunchError as LaunchError
from mpishare.errors import MismatchError as MismatchError
from mpishare.errors import MpishareError as MpishareError
from mpishare.errors import PeerCapacityError as PeerCapacityError
from mpishare.errors import PeerError as PeerError
from mpishare.errors import PeerFileError as PeerFileError
from mpishare.errors import SpecError as SpecError
from mpishare.errors import StallError as StallError
from mpishare.errors import TaskError as TaskError
from mpishare.files.listing import stored as stored
from mpishare.files.load import load as load
from mpishare.files.save import Saved as Saved
from mpishare.files.save import save as save
from mpishare.files.stored import Stored as Stored
from mpishare.messages.point_to_point import irecv as irecv
from mpishare.messages.point_to_point import isend as isend
from mpishare.messages.point_to_point import recv as recv
from mpishare.messages.point_to_point import send as send
from mpishare.messages.point_to_point import sendrecv as sendrecv
from mpishare.messages.requests import Request as Request
from mpishare.objects.distributed import Distributed as Distributed
from mpishare.objects.handle import handle as handle
from mpishare.tasks.map import map as map  # noqa: A004 - like Python's own
from mpishare.tasks.pool import Pool as Pool

__all__: list[str]
__version__: str
