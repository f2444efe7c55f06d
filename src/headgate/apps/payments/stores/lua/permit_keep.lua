-- Holds a permit for longer, if it is still held. KEYS[1]: the permits taken. ARGV: the permit's name, and for how long
-- from now (µs). Returns 1 if it is held, 0 if it was free by now.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
local free = redis.call('ZSCORE', KEYS[1], ARGV[1])
if not free or tonumber(free) <= now then
  return 0
end
redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', now + ARGV[2]), ARGV[1])
redis.call('PEXPIRE', KEYS[1], 60000)
return 1
