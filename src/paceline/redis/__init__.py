"""A Redis client: one server, Sentinel or Cluster; for threads and for event loops.

url.py              addresses, topology and login, from a URL
protocol.py         commands and script calls as bytes: pure, shared by both clients
replies.py          replies from bytes: by hiredis, or in Python
redirects.py        error replies: where to send a command that was not run, and the slot map; pure
discovery.py        which server has the data, by Sentinel or cluster; pure
async_client.py     a client for event loops             blocking_client.py      for threads, generated from it
async_connection.py calls of one turn share a packet     blocking_connection.py  a call has a socket to itself
single_flight.py    callers share a discovery in flight
server_info.py      what a server reports about itself
"""
