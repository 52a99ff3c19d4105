"""Tests of messages between ranks."""
