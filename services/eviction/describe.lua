#!lua flags=allow-oom
-- Tells of each key its expiry (Unix milliseconds; -1 none, -2 no such key), the bytes it occupies, and the
-- number in one field of it where it is a hash that has it, else -1.
-- KEYS: entries. ARGV: the field, '' to read none. Returns expiry, bytes, number, expiry, bytes, number, ...
local answers = {}
for i, key in ipairs(KEYS) do
  local cost = -1
  if ARGV[1] ~= '' and redis.call('TYPE', key).ok == 'hash' then
    cost = tonumber(redis.call('HGET', key, ARGV[1]) or -1) or -1
  end
  answers[3 * i - 2] = redis.call('PEXPIRETIME', key)
  answers[3 * i - 1] = redis.call('MEMORY', 'USAGE', key, 'SAMPLES', 0) or 0
  answers[3 * i] = cost
end
return answers
