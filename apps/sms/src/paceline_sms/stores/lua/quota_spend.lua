-- Decides one send on the budget that a user's copy has, in one step.
-- KEYS: the copy; the calls that spent.   ARGV: time ('' for the server's own), version, the earliest begin of the window, call.
-- Returns what happened, the time, and for a decision: count, limit, time left.
-- A copy that this server did not get itself came with an older state, from a file or another server: it admits nothing.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end
local copy = redis.call('HMGET', KEYS[1], 'rateLimit', 'currentCount', 'budget', 'given', 'endsAt', 'version', 'lastRefreshTime', 'server')
local limit, count, budget, given, ends = tonumber(copy[1]), tonumber(copy[2]), tonumber(copy[3]), tonumber(copy[4]), tonumber(copy[5])
if not (limit and count and budget and given and ends and ends > now) or copy[6] ~= ARGV[2]
  or tonumber(copy[7]) < tonumber(ARGV[3]) or copy[8] ~= redis.call('INFO', 'server'):match('run_id:(%w+)') then
  return {'EMPTY', now}
end
if budget < 1 then
  if given < limit then
    return {'EMPTY', now}
  end
  return {'DENIED', now, count, limit, ends - now}
end
redis.call('HINCRBY', KEYS[1], 'budget', -1)
count = redis.call('HINCRBY', KEYS[1], 'currentCount', 1)
if redis.call('SCARD', KEYS[2]) < 1000 then
  redis.call('SADD', KEYS[2], ARGV[4])
  redis.call('PEXPIREAT', KEYS[2], string.format('%.0f', ends))
end
return {'ADMITTED', now, count, limit, ends - now}
