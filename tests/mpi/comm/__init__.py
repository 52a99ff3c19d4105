"""Tests of what mpishare keeps of a communicator."""
