"""What an array is besides its bytes (`spec`, `dtypes`), and its bytes (`raw`).

Every folder may call it. It is pure: it must never import mpi4py, allocate shared memory, or read a file.
"""
