"""Messages from rank to rank.

Their format (`wire`), how they are sent and received at once (`blocking`) and later (`requests`), whether they are
compressed (`compression`), and what a signal's exception does to them (`interrupts`). `point_to_point` and `tasks` may
call it. It must never run a collective, nor leave a sender waiting when the receiver has no room for its message.
"""
