#!lua flags=allow-oom
-- Unlinks each key whose expiry is still the expected one (the expiry is its version) and measures the memory
-- around that: nothing else runs meanwhile, so the difference is what these keys freed.
-- KEYS: the lease, then entries. ARGV: how the lease must begin, then the expected expiries, Unix milliseconds.
-- Returns {used bytes before, used bytes after, answers}, used as compared with maxmemory; an answer is
-- 0 unlinked, else the expiry that the key has (-1 none, -2 no such key). FENCED when the lease is not ours:
-- a leader that slept through its term must not evict under the next one's.
-- allow-oom: refused memory is exactly when this must run.
local function used()
  local info = redis.call('INFO', 'memory')
  return tonumber(info:match('used_memory:(%d+)')) - tonumber(info:match('mem_not_counted_for_evict:(%d+)'))
end

local lease = redis.call('GET', KEYS[1])
if not lease or lease:sub(1, #ARGV[1]) ~= ARGV[1] then
  return redis.error_reply('FENCED the lease is ' .. (lease or 'gone'))
end
local before, answers, victims = used(), {}, {}
for i = 2, #KEYS do
  local held = redis.call('PEXPIRETIME', KEYS[i])
  if held == tonumber(ARGV[i]) then
    victims[#victims + 1] = KEYS[i]
    held = 0
  end
  answers[i - 1] = held
end
if #victims > 0 then
  redis.call('UNLINK', unpack(victims))
end
return {before, used(), answers}
