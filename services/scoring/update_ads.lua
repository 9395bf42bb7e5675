-- Applies the changes of one UpdateAds: all of them, or none when one names an ad that does not exist.
--
-- KEYS[1] ads, hash id -> Ad message   KEYS[2] bids, hash id -> micro-dollars   KEYS[3] paused, set of ids
-- KEYS[4] advertisers, hash name -> Advertiser message   KEYS[5] change stream   KEYS[6] meta
-- ARGV[1] epoch to found   ARGV[2] length of the stream
-- then five a change: op (ad, change, delete, advertiser), id or name, message, bid, paused; '' where unused
-- Returns '' when applied, else the id of the unknown ad.
local created = {}
for i = 3, #ARGV, 5 do
  if ARGV[i] == 'ad' then
    created[ARGV[i + 1]] = true
  elseif ARGV[i] == 'change' and not created[ARGV[i + 1]] and redis.call('HEXISTS', KEYS[1], ARGV[i + 1]) == 0 then
    return ARGV[i + 1]
  end
end
redis.call('HSETNX', KEYS[6], 'epoch', ARGV[1])
for i = 3, #ARGV, 5 do
  local op, id, message, bid, paused = ARGV[i], ARGV[i + 1], ARGV[i + 2], ARGV[i + 3], ARGV[i + 4]
  if op == 'ad' then
    redis.call('HSET', KEYS[1], id, message)
  elseif op == 'delete' then
    redis.call('HDEL', KEYS[1], id)
    redis.call('HDEL', KEYS[2], id)
    redis.call('SREM', KEYS[3], id)
  elseif op == 'advertiser' then
    redis.call('HSET', KEYS[4], id, message)
  end
  if bid ~= '' then
    redis.call('HSET', KEYS[2], id, bid)
  end
  if paused == '1' then
    redis.call('SADD', KEYS[3], id)
  elseif paused == '0' then
    redis.call('SREM', KEYS[3], id)
  end
  local sequence = redis.call('HINCRBY', KEYS[6], 'sequence', 1)
  redis.call('XADD', KEYS[5], 'MAXLEN', '~', ARGV[2], '*', 'n', sequence, 'op', op, 'id', id,
    'message', message, 'bid', bid, 'paused', paused)
end
return ''
