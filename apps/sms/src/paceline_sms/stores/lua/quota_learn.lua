-- Takes over the database's row of a user's quota, unless something newer is known.
-- KEYS: the copy; the least version to accept.
-- ARGV: time ('' for the server's own), user, limit, count, version, window's begin, generation, ms left of the window.
-- Within one window of one version neither count nor generation ever goes back.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local count, version, begin, generation = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6]), tonumber(ARGV[7])

local least = tonumber(redis.call('GET', KEYS[2]))
if least and version < least then
  return 0
end
local held = redis.call('HMGET', KEYS[1], 'version', 'lastRefreshTime', 'currentCount', 'generation')
local its_version, its_begin = tonumber(held[1]), tonumber(held[2])
if its_version and its_begin then
  if its_version > version or (its_version == version and its_begin > begin) then
    return 0
  end
  if its_version == version and its_begin == begin then
    count = math.max(count, tonumber(held[3]) or 0)
    generation = math.max(generation, tonumber(held[4]) or 0)
  end
end
redis.call('HSET', KEYS[1], 'userId', ARGV[2], 'rateLimit', ARGV[3], 'currentCount', string.format('%.0f', count),
  'version', ARGV[5], 'lastRefreshTime', ARGV[6], 'generation', string.format('%.0f', generation),
  'endsAt', string.format('%.0f', now + tonumber(ARGV[8])))
redis.call('PEXPIRE', KEYS[1], ARGV[8])
return 1
