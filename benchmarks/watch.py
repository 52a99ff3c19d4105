"""What a program and all that it started hold together, looked at from outside while it works."""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

from benchmarks.keep import pss_bytes

__all__ = ["READY", "held_bytes", "watched"]

READY = "ready"
"""A watched program prints this line when it is about to begin, and begins when it has read a line."""

_LOOK_S = 0.02


def watched(
    command: list[str], cwd: Path, *, environ: dict[str, str] | None = None, looks: bool = True
) -> tuple[dict[str, Any], int]:
    """Runs a program; what it printed last, as JSON, and how many bytes more than when it was ready it held at most.

    Proportional set sizes (PSS), so that what several processes share is counted once, looked at every 20 ms. Each look
    goes over all their pages, and holds up whoever maps more: without `looks`, for times, there is none, and 0 bytes.
    """
    with subprocess.Popen(
        command,
        cwd=cwd,
        env={**os.environ, **(environ or {})},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdin is not None
        assert program.stdout is not None
        while program.stdout.readline().strip() != READY:
            if program.poll() is not None:
                raise RuntimeError(f"{' '.join(command)} ended with {program.returncode} before it was ready")
        before, peak, is_over = held_bytes(program.pid) if looks else 0, 0, threading.Event()

        def look() -> None:
            nonlocal peak
            while not is_over.is_set():
                peak = max(peak, held_bytes(program.pid))
                time.sleep(_LOOK_S)

        thread = threading.Thread(target=look)
        if looks:
            thread.start()
        try:
            program.stdin.write("go\n")
            program.stdin.flush()
            result = program.stdout.readline()
        finally:
            is_over.set()
            if looks:
                thread.join()
        program.stdin.close()
        program.wait()
    values: dict[str, Any] = json.loads(result)
    return values, max(peak - before, 0)


def held_bytes(pid: int) -> int:
    """What a process and all that it has started hold together (PSS)."""
    total, todo = 0, [pid]
    while todo:
        item = todo.pop()
        try:
            total += pss_bytes(item)
            for thread in Path(f"/proc/{item}/task").iterdir():
                todo += map(int, (thread / "children").read_text().split())
        except (OSError, StopIteration):
            pass  # it has ended meanwhile
    return total
