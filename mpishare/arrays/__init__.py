"""What an array is besides its bytes: its dtype, shape and order, and their form in a message. Pure.

It also answers which part of an array each of several ranks takes (`slices`).

Everybody may call it. It must never ask MPI, the kernel or a file anything.
"""
