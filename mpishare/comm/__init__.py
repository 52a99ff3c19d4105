"""What mpishare knows and keeps of a communicator, and how its ranks act as one.

It answers which ranks share a node (`topology`), what is kept for a communicator (`context`), how one rank's error
becomes every rank's (`agreement`), how every public collective begins (`collective`), and what ends a wait
(`watchdog`) or a job (`unhandled`). Every folder but `arrays` and `host` may call it. It must never allocate shared
memory, move the bytes of an array, or send on a communicator that users can see.
"""
