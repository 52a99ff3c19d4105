"""Messages from rank to rank.

The public calls (`point_to_point`), the format of a message (`wire`), how it is sent and received in the fewest steps
(`blocking`) and in general (`requests`, also what a signal's exception does to it), and whether it is compressed
(`compression`). `mpishare` itself and `tasks` may call it. It must never run a collective, nor leave a sender waiting
when the receiver has no room for its message.
"""
