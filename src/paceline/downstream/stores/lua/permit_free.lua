-- Says when a permit is free again, if that is sooner than it would be. KEYS[1]: see permit_take.lua. ARGV: the holder,
-- and the time (µs) by the server's clock.
local known = redis.call('ZSCORE', KEYS[1], ARGV[1])
if known and tonumber(ARGV[2]) < tonumber(known) then
  redis.call('ZADD', KEYS[1], 'XX', ARGV[2], ARGV[1])
end
return 1
