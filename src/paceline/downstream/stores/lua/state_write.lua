-- Replaces the state of a downstream, unless another process has meanwhile. KEYS[1]: the state. ARGV: before, after.
if (redis.call('GET', KEYS[1]) or '') ~= ARGV[1] then
  return 0
end
redis.call('SET', KEYS[1], ARGV[2])
return 1
