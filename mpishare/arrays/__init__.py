"""What an array is besides its bytes: its dtype, shape and order, and their form in a message. Pure.

Everybody may call it. It must never ask MPI, the kernel or a file anything.
"""
