-- Writes a cached list unless the cache holds a newer one.
--
-- KEYS[1]  key of the list
-- ARGV[1]  value; its header holds written_at_ms as little-endian i64 at byte offset 24 (services/core/ads_list.py)
-- ARGV[2]  expiry, Unix milliseconds: the priority of the entry, never an age
-- Returns 2 when written over another value, 1 when written anew, 0 when the cache holds a newer list.
local existing = redis.pcall('GETRANGE', KEYS[1], 0, 31)
if type(existing) == 'table' then
  existing = existing.err -- a key of another type: SET replaces it
end
if #existing == 32 and string.sub(existing, 1, 4) == string.sub(ARGV[1], 1, 4) then
  -- Milliseconds stay far below 2^53, so Lua's doubles compare them exactly.
  if struct.unpack('<l', string.sub(existing, 25, 32)) > struct.unpack('<l', string.sub(ARGV[1], 25, 32)) then
    return 0
  end
end
redis.call('SET', KEYS[1], ARGV[1], 'PXAT', ARGV[2])
if #existing > 0 then
  return 2
end
return 1
