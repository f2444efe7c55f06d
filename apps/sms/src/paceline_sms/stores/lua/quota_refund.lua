-- Gives back what a call has spent, if it has: its answer was lost, and the database decided instead.
-- KEYS: the copy; the calls that spent.   ARGV: the call.
if redis.call('SREM', KEYS[2], ARGV[1]) == 1 and redis.call('EXISTS', KEYS[1]) == 1 then
  redis.call('HINCRBY', KEYS[1], 'budget', 1)
  redis.call('HINCRBY', KEYS[1], 'currentCount', -1)
end
