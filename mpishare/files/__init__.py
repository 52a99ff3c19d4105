"""Files into node memory and out of it."""

from __future__ import annotations

from mpishare.files.saving import Saved, save

__all__ = ["Saved", "save"]
