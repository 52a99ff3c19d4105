"""Checkpoints: named arrays and small values that a later job continues from, on any ranks and nodes.

It answers what a checkpoint's file looks like, how it is made and verified (`contents`), how its small values are
stored (`values`), and which file is the latest good one and which are removed (`folder`). Only `mpishare` itself calls
it. It must never remove a checkpoint that could still be needed.
"""
