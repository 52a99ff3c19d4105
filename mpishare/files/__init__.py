"""Arrays out of files into node memory, and back: `load`, `save` and `stored`, for .npy and HDF5.

It answers what a file stores (`listing`), how an array is cut into tiles (`tiles`) that a format reads (`npy`,
`hdf5_read`), which rank reads or writes which bytes (`parallel_read`, `row_blocks`), and how a new file takes the place
of an old one (`atomic_file`). `checkpoints` and `mpishare` itself may call it. It must never leave half a file under
the name of a good one, and never import h5py before a file needs it.
"""
