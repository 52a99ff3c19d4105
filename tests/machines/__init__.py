"""Other kernels and several domains of memory, in virtual machines."""
