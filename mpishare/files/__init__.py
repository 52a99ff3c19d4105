"""Arrays out of files into node memory, and back."""

from __future__ import annotations

from mpishare.files.loading import load
from mpishare.files.looking import stored
from mpishare.files.saving import Saved, save
from mpishare.files.stored import Stored

__all__ = ["Saved", "Stored", "load", "save", "stored"]
