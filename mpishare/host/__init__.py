"""Facts about this host, read from Linux: memory, control groups, file systems, /proc.

Everybody may call it. It must never import MPI, and never change anything on the host, but for `leftovers`: that
removes files of MPI that no process uses any more.
"""
