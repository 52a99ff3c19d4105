"""Blocks in which a rank is alone."""

from mpishare.comm.alone import alone, blocks
from mpishare.comm.mpi import COMM_SELF


def test_a_block_that_never_began_ends_without_a_word():
    """Its reference goes while another block is on. What a callback raises there is an error of the test."""
    with alone(COMM_SELF, "within a test"):
        before = list(blocks)
        alone(COMM_SELF, "nowhere")
        assert list(blocks) == before
