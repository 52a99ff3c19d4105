"""Checkpoints: named arrays and small values that a later job goes on with, on any ranks and nodes.

It answers what a checkpoint's file looks like (`manifest`), which one is the latest good one, and which go
(`checkpoint`). Only `mpishare` itself calls it. It must never remove a checkpoint that could still be needed.
"""
