#!lua flags=allow-oom
-- Tells of each key its expiry (Unix milliseconds; -1 none, -2 no such key) and the bytes it occupies.
-- KEYS: entries. Returns expiry, bytes, expiry, bytes, ... Values are not read.
local answers = {}
for i, key in ipairs(KEYS) do
  answers[2 * i - 1] = redis.call('PEXPIRETIME', key)
  answers[2 * i] = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) or 0
end
return answers
