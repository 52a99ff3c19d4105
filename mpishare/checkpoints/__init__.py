"""Checkpoints: named arrays and small values that a later job goes on with, on whatever ranks and nodes it has."""

from __future__ import annotations

from mpishare.checkpoints.checkpoint import Checkpoint
from mpishare.checkpoints.snapshot import Snapshot

__all__ = ["Checkpoint", "Snapshot"]
