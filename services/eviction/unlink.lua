#!lua flags=allow-oom
-- Unlinks each key whose expiry is still the expected one (the expiry is its version) and measures the memory
-- around that: nothing else runs meanwhile, so the difference is what these keys freed.
-- KEYS: entries. ARGV: their expected expiries, Unix milliseconds.
-- Returns {used bytes before, used bytes after, answers}, used as compared with maxmemory; an answer is
-- 0 unlinked, else the expiry that the key has (-1 none, -2 no such key).
-- allow-oom: refused memory is exactly when this must run.
local function used()
  local info = redis.call('INFO', 'memory')
  return tonumber(info:match('used_memory:(%d+)')) - tonumber(info:match('mem_not_counted_for_evict:(%d+)'))
end

local before, answers = used(), {}
for i, key in ipairs(KEYS) do
  local held = redis.call('PEXPIRETIME', key)
  if held == tonumber(ARGV[i]) then
    redis.call('UNLINK', key)
    held = 0
  end
  answers[i] = held
end
return {before, used(), answers}
