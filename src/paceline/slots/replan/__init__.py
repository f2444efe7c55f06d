"""Re-plan: `run.py` moves booked slots in transactions of bounded time. `assignment.py` chooses their windows, or
`spread.py` if they go later; `places.py` gives them times there, and `parts.py` does so part by part."""
