-- Says when a permit is free again, if that is sooner than it would be. KEYS[1]: see permit_take.lua. ARGV: the holder,
-- after how long (µs), and the time (µs) if the server's own shall not count.
local now = tonumber(ARGV[3])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local free = now + ARGV[2]
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if known and free < tonumber(known) then
  redis.call('ZADD', KEYS[1], 'XX', string.format('%.0f', free), ARGV[1])
end
return 1
