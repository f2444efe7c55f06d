-- Decides one send on the copy of a user's quota, and counts it, in one step.
-- KEYS: the copy; for a keyed send, its note.
-- ARGV: time ('' for the server's own); for the note: lease and life in ms, who is calling, and the message's fingerprint.
-- Returns what happened, the time, and for a decision: count, limit, time left, version, window's begin, generation.
local now = tonumber(ARGV[1])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000 + math.floor(time[2] / 1000)
end

local quota = redis.call('HMGET', KEYS[1], 'rateLimit', 'currentCount', 'endsAt', 'version', 'lastRefreshTime', 'generation')
local limit, count, ends = tonumber(quota[1]), tonumber(quota[2]), tonumber(quota[3])
local known = limit and count and ends and quota[4] and quota[5] and quota[6] and ends > now

local function answer(what)
  return {what, now, count, limit, ends - now, tonumber(quota[4]), tonumber(quota[5]), tonumber(quota[6])}
end

local function note(lease)
  redis.call('HSET', KEYS[2], 'state', 'publishing', 'until', string.format('%.0f', now + lease), 'owner', ARGV[4], 'fingerprint', ARGV[5])
  redis.call('PEXPIRE', KEYS[2], ARGV[3])
end

if not known then
  return {'MISS', now}
end
if KEYS[2] then
  local held = redis.call('HMGET', KEYS[2], 'state', 'until', 'owner', 'fingerprint')
  if held[4] and held[4] ~= ARGV[5] then
    return {'REUSED', now}
  end
  if held[1] == 'sent' then
    return answer('SENT')
  end
  if held[1] == 'publishing' and tonumber(held[2]) > now and held[3] ~= ARGV[4] then
    return {'BUSY', now}
  end
  if held[1] then
    -- Counted before, by this caller or by one that failed to publish or died: published again, not counted again.
    note(tonumber(ARGV[2]))
    return answer('RESUMED')
  end
end
if count >= limit then
  return answer('DENIED')
end
count = redis.call('HINCRBY', KEYS[1], 'currentCount', 1)
if KEYS[2] then
  note(tonumber(ARGV[2]))
end
return answer('ADMITTED')
