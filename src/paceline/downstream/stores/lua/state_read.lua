-- The state of a downstream, and the server's clock (µs). KEYS[1]: the state.
local time = redis.call('TIME')
return {redis.call('GET', KEYS[1]) or '', time[1] * 1000000 + time[2]}
