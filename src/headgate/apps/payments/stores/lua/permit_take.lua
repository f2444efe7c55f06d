-- Takes a permit, if there is one. KEYS[1]: the permits taken, by when each is free again. ARGV: the permit's name, how
-- many there are, and for how long it is held (µs) if nobody says otherwise. Returns 0, or how long (µs) until one is free.
local time = redis.call('TIME')
local now = time[1] * 1000000 + time[2]
redis.call('ZREMRANGEBYSCORE', KEYS[1], '-inf', string.format('%.0f', now))
if redis.call('ZCARD', KEYS[1]) < tonumber(ARGV[2]) then
  redis.call('ZADD', KEYS[1], string.format('%.0f', now + ARGV[3]), ARGV[1])
  redis.call('PEXPIRE', KEYS[1], 60000)
  return 0
end
local first = redis.call('ZRANGE', KEYS[1], 0, 0, 'WITHSCORES')
return math.max(1, math.ceil(first[2] - now))
