"""A Redis client: one server, Sentinel or Cluster; for threads and for event loops.

url.py              where Redis is and how to log in
protocol.py         commands and script calls as bytes: pure, shared by both clients
redirects.py        what to do when Redis refuses a command that it has not run: pure
discovery.py        which server has the data: questions and what follows from the answers, pure
blocking_client.py  a client for threads
async_client.py     a client for event loops: calls of one turn share a packet
server_info.py      what a server reports about itself
"""

from headgate.extras import require

require("Redis", "redis")
