"""The version, apart from the package so that building it needs no NumPy."""

VERSION = "0.1.0"
