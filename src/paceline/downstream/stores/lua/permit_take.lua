-- Takes a permit, as `downstream/permits.py` does. KEYS[1]: a sorted set, from each holder to when its permit is free
-- again (µs), with three members of another kind: 'life:<run id>' (+inf), '#open' and '#paced' (see `Permits`).
-- ARGV: the holder, the number of permits, the hold after leaving (µs), the spacing (µs), the burst, the longest hold
-- (µs), the look-ahead (µs), and the time (µs) if the server's own shall not count.
-- Returns how long to wait (µs; 0: granted), how long until the call may leave, and the server's clock (µs).
local now = tonumber(ARGV[8])
if not now then
  local time = redis.call('TIME')
  now = time[1] * 1000000 + time[2]
end
local key, holder, count = KEYS[1], ARGV[1], tonumber(ARGV[2])
local hold, spacing, burst = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5])
local ahead = tonumber(ARGV[7])
local function write(member, score)
  redis.call('ZADD', key, string.format('%.0f', score), member)
end

-- A restarted server, and one that took over, may have lost the last permits: it has another run id.
local life = 'life:' .. string.match(redis.call('INFO', 'server'), 'run_id:(%w+)')
if not redis.call('ZSCORE', key, life) then
  redis.call('DEL', key)
  redis.call('ZADD', key, '+inf', life)
  write('#open', now + ARGV[6])
end
redis.call('ZREMRANGEBYSCORE', key, '-inf', string.format('%.0f', now))
-- A holder that has a permit exchanges it: its spacing is paid.
local exchange = redis.call('ZSCORE', key, holder)
local open = redis.call('ZSCORE', key, '#open')
if open then
  return {math.min(tonumber(open) - now, 1000000), 0, now}
end
local paced = tonumber(redis.call('ZSCORE', key, '#paced')) or 0
redis.call('ZREM', key, '#paced')
local leave = exchange and now or math.max(now, paced - (burst - 1) * spacing)
redis.call('ZREM', key, holder)
local excess = redis.call('ZCARD', key) - 1 - count
if excess >= 0 then
  leave = math.max(leave, tonumber(redis.call('ZRANGE', key, excess, excess, 'WITHSCORES')[2]))
end
if leave - now > ahead then
  if paced > now then
    write('#paced', paced)
  end
  if exchange then
    redis.call('ZADD', key, exchange, holder)
  end
  return {math.max(1, math.min(leave - now, 1000000) - ahead), 0, now}
end
write(holder, leave + hold)
paced = exchange and paced or math.max(paced, leave) + spacing
if paced > now then
  write('#paced', paced)
end
return {0, leave - now, now}
