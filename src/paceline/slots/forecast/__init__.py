"""What would happen, without booking anything: `forecast.py` under one config and `joint.py` under several,
`heat_map.py` of the next days, `impact.py` of a change on what is booked."""
