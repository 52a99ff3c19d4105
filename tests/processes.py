"""What the kernel tells about a process, for tests."""

from __future__ import annotations

import os
from pathlib import Path


def pss_bytes(pid: int | str = "self") -> int:
    """Proportional set size: private pages, plus each shared page divided by the number of processes that map it."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) << 10
    raise ValueError("smaps_rollup without Pss")


def may_reopen_maps() -> bool:
    """Whether this process may open /proc/self/map_files, which takes CAP_CHECKPOINT_RESTORE."""
    for entry in Path("/proc/self/map_files").iterdir():
        try:
            os.close(os.open(entry, os.O_RDONLY))
        except PermissionError:
            return False
        except OSError:
            continue
        return True
    return False
