"""Arrays from files in node memory."""

from __future__ import annotations

from mpishare.files.loading import load
from mpishare.files.looking import stored
from mpishare.files.stored import Stored

__all__ = ["Stored", "load", "stored"]
