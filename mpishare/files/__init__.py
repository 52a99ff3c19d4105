"""Arrays out of files into node memory, and back: `load`, `save` and `stored`.

It answers which format a file has (`formats`), what it stores (`listing`), how an array is cut into tiles (`tiles`)
that the format (`npy`, `hdf5_read`) or another library (`sliced`) reads, which rank reads or writes which bytes
(`parallel_read`, `replace_file`), and how a new file takes the place of an old one (`atomic_file`). `checkpoints` and
`mpishare` itself may call it. It must never leave half a file under the name of a good one, and never import the
package of a format before a file needs it.
"""
