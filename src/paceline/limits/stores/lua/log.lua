-- The sliding log. A record is a header and entries of ten bytes (time, cost) in order of time. Entries before `head`
-- have left the window or were given back, those from `tail` on were given back: so a call reads and writes only the ends
-- of a log, however long it is. What a hold gave back amid the log stays there at a cost of 0. What is dead at its front
-- is cut off when it outweighs what lives.
--
-- Made on demand, for every script call makes its functions anew and most plans need none of these.

local function logbook(now)
  local VERSION, HEADER, ENTRY, CHUNK = 1, 28, 10, 64
  local max, min, pack, unpack = math.max, math.min, struct.pack, struct.unpack
  local call = redis.call

  local function entries(log, first, count)
    local from = HEADER + first * ENTRY
    return call('GETRANGE', log.key, from, from + count * ENTRY - 1)
  end

  local function as_new(key, tag)
    return { key = key, tag = tag, stored = false, head = 0, tail = 0, used = 0 }
  end

  -- The log as of now. A key that holds something else, or nothing, is as new.
  local function load(key, size, window, kind)
    local header = redis.pcall('GETRANGE', key, 0, HEADER - 1)
    if type(header) ~= 'string' or #header ~= HEADER then return as_new(key, kind) end
    local version, tag, head, tail, used, oldest, newest = unpack('<BBI4I4I4I7I7', header)
    local since = now - window
    if version ~= VERSION or tag ~= kind or newest <= since then return as_new(key, kind) end
    if newest - now > window then
      return { key = key, tag = kind, stored = false, head = 0, tail = 1, used = size, oldest = now, newest = now, stranded = true }
    end
    local log = { key = key, tag = kind, stored = true, newest = newest }
    while oldest <= since do
      local chunk = entries(log, head, min(CHUNK, tail - head))
      if #chunk == 0 then return as_new(key, kind) end
      for at = 1, #chunk, ENTRY do
        local time, cost = unpack('<I7I3', chunk, at)
        oldest = time
        if time > since then break end
        head, used = head + 1, used - cost
      end
    end
    log.head, log.tail, log.used, log.oldest = head, tail, used, oldest
    return log
  end

  -- When so much will have left that `excess` is gone.
  local function leaves(log, excess)
    if not log.stored then return log.newest end
    for first = log.head, log.tail - 1, CHUNK do
      local chunk = entries(log, first, min(CHUNK, log.tail - first))
      for at = 1, #chunk, ENTRY do
        local time, cost = unpack('<I7I3', chunk, at)
        excess = excess - cost
        if excess <= 0 then return time end
      end
    end
  end

  -- Calls of one grain share an entry, whose time is the last of them.
  local function take(log, size, cost, grain)
    cost = min(cost, size - log.used)
    if cost <= 0 then return end
    local time = now + grain - 1
    log.used = log.used + cost
    if not log.stored then
      log.tail, log.oldest, log.newest = 1, time, time
    elseif log.newest >= now then
      local last = log.tail - 1
      local _, spent = unpack('<I7I3', entries(log, last, 1))
      call('SETRANGE', log.key, HEADER + last * ENTRY, pack('<I7I3', log.newest, spent + cost))
    else
      call('SETRANGE', log.key, HEADER + log.tail * ENTRY, pack('<I7I3', time, cost))
      log.tail, log.newest = log.tail + 1, time
    end
  end

  local function give(log, cost)
    if not log.stored then
      log.used = max(log.used - cost, 0)
      return
    end
    while cost > 0 and log.tail > log.head do
      local first = log.head
      local chunk = entries(log, first, min(CHUNK, log.tail - first))
      for at = 1, #chunk, ENTRY do
        local time, spent = unpack('<I7I3', chunk, at)
        local back = min(cost, spent)
        cost, log.used, log.oldest = cost - back, log.used - back, time
        if back < spent then
          call('SETRANGE', log.key, HEADER + log.head * ENTRY, pack('<I7I3', time, spent - back))
          break
        end
        log.head = log.head + 1
      end
    end
  end

  -- Where the entry of `time` is, and what it cost; nothing if it is not in the log.
  local function find(log, time)
    local low, high = log.head, log.tail
    while low < high do
      local middle = math.floor((low + high) / 2)
      if unpack('<I7', entries(log, middle, 1)) < time then low = middle + 1 else high = middle end
    end
    if low == log.tail then return nil, 0 end
    local found, spent = unpack('<I7I3', entries(log, low, 1))
    if found ~= time then return nil, 0 end
    return low, spent
  end

  -- Gives back of what was taken at `time`, if that is in the log.
  local function release(log, cost, time)
    if not log.stored then
      if log.used > 0 and log.newest == time then log.used = max(log.used - cost, 0) end
      return
    end
    local low, spent = find(log, time)
    if not low then return end
    local back = min(cost, spent)
    log.used = log.used - back
    call('SETRANGE', log.key, HEADER + low * ENTRY, pack('<I7I3', time, spent - back))
    while log.tail > log.head do
      local newest, left = unpack('<I7I3', entries(log, log.tail - 1, 1))
      if left > 0 then
        log.newest = newest
        return
      end
      log.tail = log.tail - 1
    end
  end

  -- Whether `cost` places that were taken at `time` are there, or there is room for them.
  local function renewable(log, size, cost, time)
    local held = 0
    if log.stored then
      local _, spent = find(log, time)
      held = spent
    elseif log.used > 0 and log.newest == time then
      held = log.used
    end
    log.held = held >= cost
    return log.held or log.used + cost <= size
  end

  -- Takes the places anew as of now.
  local function renew(log, cost, time)
    if log.held then release(log, cost, time) end
    if log.used == 0 then log.stored, log.head, log.tail = false, 0, 0 end
    take(log, log.used + cost, cost, 1)
  end

  local function save(log, ms)
    local head, tail, body = log.head, log.tail, nil
    if not log.stored then
      body = pack('<I7I3', log.newest, log.used)
    elseif head > CHUNK and head > tail - head then
      body = entries(log, head, tail - head)
      head, tail = 0, tail - head
    end
    local header = pack('<BBI4I4I4I7I7', VERSION, log.tag, head, tail, log.used, log.oldest, log.newest)
    if body then
      call('SET', log.key, header .. body, 'PX', ms)
    else
      call('SETRANGE', log.key, 0, header)
      call('PEXPIRE', log.key, ms)
    end
  end

  return load, leaves, take, give, release, save, renewable, renew
end
