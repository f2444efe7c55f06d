-- Notes whether a keyed send that was counted has been published.
-- KEYS: the note.   ARGV: 'sent' or 'failed'; the note's life in ms.
redis.call('HSET', KEYS[1], 'state', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
