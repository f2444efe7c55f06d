"""Booking: `writer.py` gathers requests, `packing.py` packs those of one transaction, `packer.py` searches for each
event's time, `first_window.py` is the rule of the window that holds its effective time."""
