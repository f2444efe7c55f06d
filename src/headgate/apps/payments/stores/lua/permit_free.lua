-- Says when a permit is free again, if that is sooner than was thought. KEYS[1]: the permits taken. ARGV: the permit's
-- name, and from now how long (µs).
local time = redis.call('TIME')
local free = time[1] * 1000000 + time[2] + ARGV[2]
local thought = redis.call('ZSCORE', KEYS[1], ARGV[1])
if thought and free < tonumber(thought) then
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', free), ARGV[1])
end
return 1
