"""A plugin, `pytest -p tests.no_linux`: takes away what only Linux has, before anything of mpishare is imported.

The names go that Python lacks on other systems, and the files in which the kernel describes itself. The kernel stays
Linux, so that this is no test of another one.
"""

import fcntl
import os
import socket

from mpishare.host import procfs

NAMES = {
    os: ["O_TMPFILE", "memfd_create", "posix_fallocate", "sched_getaffinity", "sched_setaffinity"],
    socket: ["MSG_CMSG_CLOEXEC", "SO_PEERCRED"],
    fcntl: ["F_SETLEASE", "F_SETSIG"],
}

for module, names in NAMES.items():
    for name in names:
        delattr(module, name)
procfs.IS_LINUX = False
procfs.text_of = lambda file: ""
