-- The arithmetic of admission/algorithms.py, number for number; docs/explanation/admission.md states it in prose.
-- All numbers are integers below 2^53, so doubles hold them exactly; -floor(-a / b) is a / b rounded up.
--
-- KEYS     one per charge, then the hold's if there is one
-- ARGV[1]  what to do, as one letter, and the time in microseconds if a test gives one:
--            s  decide and spend     p  decide, only look     h  decide, spend and hold
--            r  give back            t  settle a hold         c  like h, but hold only places of concurrency limits
--            n  renew held places
-- ARGV[2…] one per charge: tag, shadow, cost (t: the actual one), size, life, and a, b, c: unit, gain, full of a bucket; window, grain,
--          grains of a sliding window; window, grain of a log; three edges of a calendar, one of them near now; window of
--          the others
-- ARGV[#]  s: how many times, one after another, if more than once; h, c, n: how long to hold, in microseconds
--
-- s, p, h, c return a string: fits, remaining, retry and reset of each charge, each time, eight bytes each; one byte more
-- if the hold is remembered already. (A string is half the work of a list of numbers, here and for whoever reads it.)
-- t, n return 1 (applied), 0 (settled before) or -1 (no such hold, or places lost). r returns nothing of interest.
--
-- A record is schema version, tag, start, used, before. Of a bucket, start is when it was last counted, used the debt
-- in ticks, before the ticks in a token; born, end and paid follow if ticks are held. What is missing or looks otherwise
-- is as new. A hold is schema version, 0 open or 1 settled or 2 cancelled, expiry, and of each charge its tag (0: not
-- charged), its place (time, end), its cost and its key. Code is in line because every call of a script makes its
-- functions anew.

local VERSION, BUCKET, FIXED, SLIDING, LOG, CALENDAR, PLACES, MOST = 1, 1, 2, 3, 4, 5, 6, 1125899906842624
local floor, max, min = math.floor, math.max, math.min
local pack, unpack, call = struct.pack, struct.unpack, redis.call

local mode, given = string.byte(ARGV[1]), #ARGV[1] > 1
local looks, holds, gives, settles = mode == 112, mode == 104 or mode == 99, mode == 114, mode == 116
local places, renews = mode == 99, mode == 110
local now
-- A time given by a test is not the server's, so nothing may expire by the server's clock meanwhile.
local least_ms = 1
if given then
  now, least_ms = tonumber(string.sub(ARGV[1], 2)), 600000
else
  local time = call('TIME')
  now = time[1] * 1000000 + time[2]
end

-- The commonest call, one bucket or fixed window that is not odd, without tables. What follows would come to the same.
if mode == 115 and #KEYS == 1 then
  local tag, _, cost, size, _, a, b, c = unpack('<BBdddddd', ARGV[2])
  local record = tag <= FIXED and redis.pcall('GET', KEYS[1])
  local plain, start, used, taken = record == false and tag <= FIXED, now, 0, false
  if type(record) == 'string' and #record == 26 then
    local version, kind, was_start, was_used, was_before = unpack('<BBddd', record)
    plain = version == VERSION and kind == tag and was_start <= now
    if tag == FIXED then
      if was_used > 0 and now - was_start < a then start, used = was_start, min(was_used, size) end
    elseif was_before == a then
      used = max(min(was_used, c) - (now - was_start) * b, 0)
    else
      plain = false
    end
  end
  if plain then
    local reply, reset = '', 0
    for _ = 1, tonumber(ARGV[3] or 1) do
      local retry, remaining = 0, 0
      if tag == FIXED then
        if used + cost > size then retry = start + a - now else used, taken = used + cost, true end
        remaining = size - used
        reset = used > 0 and start + a - now or 0
      else
        local missing = used + cost * a - c
        if missing > 0 then retry = -floor(-missing / b) else used, taken = used + cost * a, true end
        remaining = floor((c - used) / a)
        reset = -floor(-used / b)
      end
      reply = reply .. pack('<i8i8i8i8', retry == 0 and 1 or 0, remaining, retry, reset)
    end
    if taken then
      local state = pack('<BBddd', VERSION, tag, start, used, tag == BUCKET and a or 0)
      call('SET', KEYS[1], state, 'PX', max(floor(reset / 1000) + 2, least_ms))
    end
    return reply
  end
end

local count, decides, spends, repeated = #KEYS, not (gives or settles or renews), not looks, false
local hold, settled, expires, marks
if holds or settles or renews then
  hold, count = KEYS[count], count - 1
  local record = call('GET', hold)
  local version
  if record then
    version, settled, expires = unpack('<BBd', record)
    if version ~= VERSION or now >= expires then settled = nil end
  end
  if settles or renews then
    if not settled then return -1 end
    if settled > 0 then return renews and -1 or 0 end
    marks = {}
    local at, tag, time, finish, held, key = 11, 0, 0, 0, 0, ''
    while at <= #record do
      tag, time, finish, held, key, at = unpack('<BdddI4c0', record, at)
      marks[key] = { tag, time, finish, held }
    end
  elseif settled == 0 or settled == 1 then
    repeated, spends = true, false
  end
end

local times = mode == 115 and tonumber(ARGV[count + 2]) or 1
local states, changed, reply = {}, {}, {}
local log_load, log_leaves, log_take, log_give, log_release, log_save, log_renewable, log_renew

for i = 1, count do
  local tag, shadow, cost, size, life, a, b, c = unpack('<BBdddddd', ARGV[i + 1])
  local start, used, before, stranded, log, lent = now, 0, 0, false, nil, nil

  -- The state as of now.
  if tag == LOG or tag == PLACES then
    if not log_load then
      log_load, log_leaves, log_take, log_give, log_release, log_save, log_renewable, log_renew = logbook(now)
    end
    log = log_load(KEYS[i], size, a, tag)
    stranded, used = log.stranded, log.used
  else
    if tag == CALENDAR then start = now < b and a or now < c and b or c end
    -- pcall: a key that holds something else than a string is as new, too.
    local record = redis.pcall('GET', KEYS[i])
    if type(record) == 'string' and (#record == 26 or #record == 50) then
      local version, kind, was_start, was_used, was_before = unpack('<BBddd', record)
      if version == VERSION and kind == tag then
        local elapsed = now - was_start
        local spent = was_used > 0 or (tag == SLIDING and was_before > 0)
        if spent and -elapsed > life then
          stranded = true
          used = tag == BUCKET and c or size
        elseif tag == BUCKET then
          if was_before ~= a then was_used = min(-floor(-was_used / was_before), size) * a end
          if was_used > c then was_used = c end
          if was_used > 0 and elapsed < life then
            if elapsed < 0 then
              start, used = was_start, was_used
            elseif was_used > elapsed * b then
              used = was_used - elapsed * b
            end
          end
          if #record == 50 and was_before == a then
            local born, finish, paid = unpack('<ddd', record, 27)
            paid = max(paid, finish - used)
            if paid < finish then lent = { born, finish, paid } end
          end
        elseif tag == CALENDAR then
          if was_used > 0 and was_start >= start then start, used = was_start, min(was_used, size) end
        elseif tag == FIXED then
          if elapsed < a and was_used > 0 then start, used = was_start, min(was_used, size) end
        else
          was_before, was_used = min(was_before, size), min(was_used, size)
          if elapsed >= a then
            was_start, was_before, was_used, elapsed = was_start + a, was_used, 0, elapsed - a
          end
          if elapsed < a and (was_before > 0 or was_used > 0) then
            start, used, before = was_start, was_used, was_before
          end
        end
      end
    end
  end

  -- From here on it is a fixed window.
  if tag == CALENDAR then a = (start <= a and b or start <= b and c or start + c - b) - start end
  states[i] = { tag, cost, size, a, b, c, start, used, before, shadow == 0, log or lent or false, 0 }
  changed[i] = stranded and spends
end

if renews then
  local kept, lost = {}, false
  for i = 1, count do
    local mark = marks[KEYS[i]]
    if mark and mark[1] == PLACES and not log_renewable(states[i][11], states[i][3], mark[4], mark[2]) then lost = true end
  end
  for i = 1, count do
    local mark, log = marks[KEYS[i]], states[i][11]
    local time = mark and mark[2] or 0
    if mark and mark[1] == PLACES then
      if lost then
        log_release(log, mark[4], time)
      else
        log_renew(log, mark[4], time)
        time = log.newest
      end
      if log.used > 0 then
        log_save(log, max(floor((log.newest + states[i][4] - now) / 1000) + 2, least_ms))
      else
        call('DEL', KEYS[i])
      end
    end
    kept[i] = pack('<BdddI4c0', mark and mark[1] or 0, time, 0, mark and mark[4] or 0, #KEYS[i], KEYS[i])
  end
  if not lost then expires = now + tonumber(ARGV[count + 2]) end
  local ms = max(floor((expires - now) / 1000) + 2, least_ms)
  call('SET', hold, pack('<BBd', VERSION, lost and 2 or 0, expires) .. table.concat(kept), 'PX', ms)
  return lost and -1 or 1
end

local passes
for round = 1, times do
  passes = decides
  for i = 1, count do
    local state = states[i]
    local tag, cost, size, a, b, c = state[1], state[2], state[3], state[4], state[5], state[6]
    local start, used, before, log, retry = state[7], state[8], state[9], state[11], 0

    -- How long until the cost fits.
    if decides then
      if tag == BUCKET then
        local missing = used + cost * a - c
        if missing > 0 then retry = start - now - floor(-missing / b) end
      elseif tag == FIXED or tag == CALENDAR then
        if used + cost > size then retry = start + a - now end
      elseif tag == LOG or tag == PLACES then
        if cost > size then
          retry = a
        elseif used + cost > size then
          retry = log_leaves(log, used + cost - size) + a - now
        end
      else
        local in_view = c - floor(max(now - start, 0) / b)
        local free = size - used - cost
        if -floor(-before * in_view / c) > free then
          local ends = start + a
          local moment = ends
          if free >= 0 and before > 0 then
            moment = min(start + max(c - floor(free * c / before), 0) * b, ends)
          end
          if moment == ends and used > 0 then
            moment = moment + min(max(c - floor((size - cost) * c / used), 0) * b, a)
          end
          retry = moment - now
        end
      end
      if retry ~= 0 and state[10] then passes = false end
    end
    state[12] = retry
  end

  for i = 1, count do
    local state = states[i]
    local tag, cost, size, a, b, c = state[1], state[2], state[3], state[4], state[5], state[6]
    local start, used, before, log, retry = state[7], state[8], state[9], state[11], state[12]

    -- Take, or give back.
    if not decides or (spends and passes and retry == 0) then
      changed[i] = true
      local more, lent = gives and -cost or cost, tag == BUCKET and log
      if settles then
        -- What is held is given back only where it still counts.
        local mark = marks[KEYS[i]]
        local held = mark and mark[4] or cost
        more = cost - held
        if mark and mark[1] == tag then
          local time, finish = mark[2], mark[3]
          if tag == BUCKET then
            if lent and lent[1] == time then
              local back = max(min(-more * a, finish - lent[3]), 0)
              if finish == lent[2] then lent[2] = finish - held * a end
              used = used - back
            end
          elseif more < 0 then
            if tag == LOG or tag == PLACES then
              log_release(log, -more, time)
            elseif start == time then
              used = max(used + more, 0)
            elseif tag == SLIDING and start == time + a then
              before = max(before + more, 0)
            end
          end
        end
        more = max(more, 0)
      end
      if tag == BUCKET then
        used = max(min(used + more * a, c), 0)
        if lent then
          lent[3] = max(lent[3], lent[2] - used)
          if lent[3] >= lent[2] then lent = false end
        end
      elseif tag == LOG or tag == PLACES then
        if more > 0 then log_take(log, size, more, b) else log_give(log, -more) end
        used = log.used
      else
        if tag == SLIDING and used + more < 0 then before = max(before + used + more, 0) end
        used = max(min(used + more, size), 0)
      end
      if holds then
        if tag == PLACES or not places then
          state[13], state[14] = (tag == LOG or tag == PLACES) and log.newest or start, 0
        end
        if tag == BUCKET and not places then
          if not lent or lent[2] > MOST then lent = { start, 0, 0 } end
          lent[2] = lent[2] + cost * a
          state[13], state[14] = lent[1], lent[2]
        end
      end
      if tag == BUCKET then log, state[11] = lent, lent end
      state[8], state[9] = used, before
    end

    -- What is left, and how long until as new.
    local remaining, reset = 0, 0
    if tag == BUCKET then
      remaining = floor((c - used) / a)
      reset = start - now - floor(-used / b)
    elseif tag == FIXED or tag == CALENDAR then
      remaining = size - used
      if used > 0 then reset = start + a - now end
    elseif tag == LOG or tag == PLACES then
      remaining = max(size - used, 0)
      if used > 0 then reset = log.newest + a - now end
    else
      local in_view = c - floor(max(now - start, 0) / b)
      remaining = max(size - used + floor(-before * in_view / c), 0)
      if used > 0 then reset = start + 2 * a - now elseif before > 0 then reset = start + a - now end
    end
    if decides then
      reply[#reply + 1] = pack('<i8i8i8i8', retry == 0 and 1 or 0, remaining, retry, reset)
    end

    -- A state lives as long as it matters; one that is as new is not kept at all.
    if changed[i] and round == times then
      local ms = max(floor(reset / 1000) + 2, least_ms)
      if reset <= 0 then
        call('DEL', KEYS[i])
      elseif tag == LOG or tag == PLACES then
        log_save(log, ms)
      else
        local record
        if tag ~= BUCKET then
          record = pack('<BBddd', VERSION, tag, start, used, before)
        elseif log then
          record = pack('<BBdddddd', VERSION, tag, start, used, a, log[1], log[2], log[3])
        else
          record = pack('<BBddd', VERSION, tag, start, used, a)
        end
        call('SET', KEYS[i], record, 'PX', ms)
      end
    end
  end
end

if settles or (holds and spends and passes) then
  local kept = {}
  if holds then
    settled, expires = 0, now + tonumber(ARGV[count + 2])
    for i = 1, count do
      local time, finish = states[i][13], states[i][14]
      local is_held = states[i][1] == PLACES or not places
      if is_held then
        kept[i] = pack('<BdddI4c0', time and states[i][1] or 0, time or 0, finish or 0, states[i][2], #KEYS[i], KEYS[i])
      else
        kept[i] = ''
      end
    end
  else
    settled = 2
    for i = 1, count do
      if states[i][2] > 0 then settled = 1 end
    end
  end
  local ms = max(floor((expires - now) / 1000) + 2, least_ms)
  call('SET', hold, pack('<BBd', VERSION, settled, expires) .. table.concat(kept), 'PX', ms)
end
if settles then return 1 end
if repeated then reply[#reply + 1] = '+' end
return #reply == 1 and reply[1] or table.concat(reply)
