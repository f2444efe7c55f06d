"""Limits in Redis: one server, Sentinel or Cluster.

url.py        where Redis is and how to get in
lua/          the arithmetic, where the states are
calls.py      building a call and reading its reply: pure, shared by both clients
remedies.py   what to do when Redis refuses a command it has not run: pure
searches.py   which server has the data: questions and what follows from the answers, pure
blocking.py   a client for threads         streaming.py  a client for event loops: calls of one turn share a packet
crowds.py     callers who ask the very same in one turn: one run of the script
limits.py     the two stores
"""

from headgate.extras import require

require("Redis", "redis")
