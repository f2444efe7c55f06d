-- Adds a budget, which the database has leased, to a user's copy; makes the copy if there is none that is valid.
-- KEYS: the copy; the calls that spent, and the leases that came; the least version to accept.
-- ARGV: time ('' for the server's own), user, limit, version, window's begin, ms left of it, what is given in all, the
-- budget, the lease.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local least = tonumber(redis.call('GET', KEYS[3]))
if least and tonumber(ARGV[4]) < least then
  return 0
end
local server = redis.call('INFO', 'server'):match('run_id:(%w+)')
local held = redis.call('HMGET', KEYS[1], 'version', 'lastRefreshTime', 'server', 'budget', 'given')
local begin, given, budget = tonumber(held[2]), tonumber(ARGV[7]), tonumber(ARGV[8])
if begin and begin > tonumber(ARGV[5]) then
  return 0
end
if held[1] == ARGV[4] and held[2] == ARGV[5] and held[3] == server then
  if redis.call('SADD', KEYS[2], ARGV[9]) == 0 then
    budget = 0
  end
  budget = budget + tonumber(held[4])
  given = math.max(given, tonumber(held[5]))
else
  redis.call('DEL', KEYS[2])
  redis.call('SADD', KEYS[2], ARGV[9])
end
redis.call('PEXPIRE', KEYS[2], ARGV[6])
redis.call('HSET', KEYS[1], 'userId', ARGV[2], 'rateLimit', ARGV[3], 'currentCount', string.format('%.0f', given - budget),
  'budget', string.format('%.0f', budget), 'given', string.format('%.0f', given), 'version', ARGV[4],
  'lastRefreshTime', ARGV[5], 'endsAt', string.format('%.0f', now + tonumber(ARGV[6])), 'server', server)
redis.call('PEXPIRE', KEYS[1], ARGV[6])
return 1
