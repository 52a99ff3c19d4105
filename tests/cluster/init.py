"""The first process of a cluster's PID namespace. While it lives the cluster lives; the kernel ends the rest with it.

So nothing has to be cleaned up, whatever happens: processes die with the PID namespace, links and addresses with the
network namespaces, files with the tmpfs on /run in the mount namespace.

    unshare --pid --fork --kill-child --mount --net --uts --ipc --mount-proc python -m tests.cluster.init SPEC
"""

import json
import os
import sys
import threading
import time

from tests.cluster import hosts, slurm
from tests.cluster.spec import LOG, Spec


def main():
    """Makes the cluster, prints "ready", then collects children until it is ended."""
    spec = Spec(*json.loads(sys.argv[1]))
    threading.Thread(target=_end_at_eof, daemon=True).start()
    hosts.make_switch(spec)
    for number in range(len(spec.hosts)):
        hosts.make_host(spec, number)
    if spec.slurm:
        slurm.start(spec)
    print("ready", flush=True)
    log = os.open(LOG, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    for stream in (1, 2):
        os.dup2(log, stream)
    while True:
        try:
            os.wait()  # for orphans of the whole namespace as well
        except ChildProcessError:
            time.sleep(0.1)


def _end_at_eof():
    """Ends the cluster when whoever started it closes our stdin, as the kernel does for a process that dies."""
    while os.read(0, 1024):
        pass
    os._exit(0)


if __name__ == "__main__":
    main()
