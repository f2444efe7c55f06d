-- Drops the copy of a user's quota, and refuses copies of versions before this one for a while.
-- KEYS: the copy; the least version to accept.   ARGV: the version; how long to refuse older ones, in ms.
redis.call('DEL', KEYS[1])
local least = tonumber(redis.call('GET', KEYS[2]))
if not least or least < tonumber(ARGV[1]) then
  redis.call('SET', KEYS[2], ARGV[1], 'PX', ARGV[2])
end
