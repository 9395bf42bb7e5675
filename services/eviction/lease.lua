#!lua flags=allow-oom
-- Renews a lease, or takes one that is free: absent, given up (holder "-"), or unchanged since it was last seen.
-- The value is "epoch holder beat clock". It has no expiry, since volatile-ttl would evict it first; whether its
-- holder is alive shows in the beat, which rises with every renewal.
-- KEYS: the lease. ARGV: who asks, the highest epoch that they know, their clock, the value to take over ('' none).
-- Returns {1 when they hold it now, the value}.
local held = redis.call('GET', KEYS[1])
local epoch, holder, beat, clock = (held or ''):match('^(%d+) (%S+) (%d+) (%d+)$')
epoch, beat, clock = tonumber(epoch or 0), tonumber(beat or 0), tonumber(clock or 0)
local mine = holder == ARGV[1] and epoch == tonumber(ARGV[2])
if not mine then
  if held and holder ~= '-' and held ~= ARGV[4] then
    return {0, held}
  end
  epoch, beat = math.max(epoch, tonumber(ARGV[2])) + 1, 0
end
local value = string.format('%.0f %s %.0f %.0f', epoch, ARGV[1], beat + 1, math.max(clock, tonumber(ARGV[3])))
redis.call('SET', KEYS[1], value)
return {1, value}
