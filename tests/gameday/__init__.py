"""A game day: each shipped alert is fired by its real fault on real servers, and seen to clear after the repair."""
