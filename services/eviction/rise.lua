#!lua flags=allow-oom
-- Raises the expiry of each key, never lowers it, never gives one to a key without.
-- KEYS: entries. ARGV: their new expiries, Unix milliseconds.
-- Returns per key: 0 raised, else the expiry that it has (-1 none, -2 no such key).
local answers = {}
for i, key in ipairs(KEYS) do
  if redis.call('PEXPIREAT', key, ARGV[i], 'GT') == 1 then
    answers[i] = 0
  else
    answers[i] = redis.call('PEXPIRETIME', key)
  end
end
return answers
