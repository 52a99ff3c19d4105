"""Messages from rank to rank: their format (`wire`), how they are sent and received (`requests`), in frames (`frames`).

`point_to_point` and `tasks` may call it. It must never run a collective, nor leave the sender of a message waiting when
the receiver has no room for it.
"""
