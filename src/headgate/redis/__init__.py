"""A Redis client: one server, Sentinel or Cluster; for threads and for event loops.

url.py              addresses, topology and login, from a URL
protocol.py         commands and script calls as bytes: pure, shared by both clients
redirects.py        error replies: where to send a command that was not run, and the slot map; pure
discovery.py        which server has the data, by Sentinel or cluster; pure
blocking_client.py  a client for threads
async_client.py     a client for event loops: calls of one turn share a packet
server_info.py      what a server reports about itself
"""

from headgate.extras import require

require("Redis", "redis")
