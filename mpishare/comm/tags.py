"""The tags of mpishare's own messages. All of them travel on communicators that only mpishare can see."""

from __future__ import annotations

from enum import IntEnum, unique


@unique
class Tag(IntEnum):
    """One number for each kind of message on the collective communicator, which is the data communicator too."""

    CHUNK = 1  # transfer/between_nodes: a chunk of an array, from node to node
    BLOCK_REQUEST = 3  # tasks/scheduler: a node asks the root for a block of tasks
    BLOCK = 4  # tasks/scheduler: the block
    MAP_RESULT = 5  # tasks/results: what the tasks of one rank returned
    POOL_COMMAND = 6  # tasks/pool: what a worker does next
    POOL_CALL = 7  # tasks/dispatcher: one call for a worker
    POOL_RESULT = 8  # tasks/dispatcher: what it returned
    ROW_BLOCK = 9  # files/parallel_write: rows on their way to the node that writes
    PIECE_READY = 10  # files/parallel_read: a reader tells its leader that a piece is in memory
    ROWS = 11  # transfer/rows: rows to or from the root
    FIRST_OF_MESSAGES = 12  # messages/wire: this and all above, what follows the head of a user's message
