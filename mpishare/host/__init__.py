"""What Linux says about this host (memory, control groups, file systems, /proc), and how its processes share open files.

Everybody may call it. It must never import MPI, and never change anything on the host.
"""
