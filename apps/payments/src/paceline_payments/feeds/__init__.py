"""A feed is an object: received whole and checked, then accepted chunk by chunk, and resumed after a crash."""
