"""Messages from rank to rank.

Their format (`wire`), how they are sent and received in the fewest steps (`blocking`) and in general (`requests`, also
what a signal's exception does to them), and whether they are compressed (`compression`). `point_to_point` and `tasks`
may call it. It must never run a collective, nor leave a sender waiting when the receiver has no room for its message.
"""
