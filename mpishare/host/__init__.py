"""What Linux says about this host, and how its processes pass each other open files.

The facts are memory, control groups, file systems and /proc. Everybody may call it. It must never import MPI, and never
change anything on the host.
"""
