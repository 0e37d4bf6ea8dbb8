"""The cases of spill_more_cases.py that enable alike: by name, without loading torch."""

MORE = [
    "every_optimizer",
    "shares",
    "auto_refuses",
    "auto_follows",
    "auto_trains",
    "asked_for",
    "stays",
    "compiled",
]
