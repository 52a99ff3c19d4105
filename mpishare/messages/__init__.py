"""Messages from rank to rank.

The public calls (`point_to_point`), the format of a message and its compression (`wire`), and how it is sent and
received, at once or later, also what a signal's exception does to it (`requests`). `mpishare` itself and `tasks` may
call it. It must never run a collective, nor leave a sender waiting when the receiver has no room for its message.
"""
