"""The cases of spill_more_cases.py and spill_state_cases.py that enable alike: by name, without
loading torch."""

MORE = [
    "every_optimizer",
    "moves_between_streams",
    "another_state",
    "shares",
    "auto_refuses",
    "auto_interrupted",
    "auto_follows",
    "auto_trains",
    "asked_for",
    "stays",
    "compiled",
]
STATE = ["copies", "round_trips", "ways_in", "replaced", "forked", "no_room_ahead"]
