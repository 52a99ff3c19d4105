"""Facts for people: what node memory this process views (`report`), and what the job runs on (`info`).

`mpishare` itself may call it. It must never change what it reports of. The folder has an underscore because
`mpishare.report` is the function.
"""
