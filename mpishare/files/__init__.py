"""Arrays out of files into node memory, and back."""

from __future__ import annotations

from mpishare.files.inspect import stored
from mpishare.files.load import load
from mpishare.files.save import Saved, save
from mpishare.files.stored import Stored

__all__ = ["Saved", "Stored", "load", "save", "stored"]
