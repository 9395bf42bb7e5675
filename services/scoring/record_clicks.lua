-- Charges the clicks of one call: all of them or, when the script cannot run, none.
--
-- KEYS[1] spend of the day, hash advertiser -> micro-dollars   KEYS[2] change stream   KEYS[3] meta   KEYS[4] earning queries
-- then three a click: KEYS[3i+2] record of the click id   KEYS[3i+3] record of the shown ad   KEYS[3i+4] revenue history
-- ARGV[1] epoch to found   ARGV[2] length of the stream   ARGV[3] seconds a record lives   ARGV[4] seconds a day's spend lives
-- ARGV[5] seconds a revenue history lives   ARGV[6] day   ARGV[7] now, Unix milliseconds
-- then three a click: advertiser, price in micro-dollars, name of the query
-- Returns one number a click: 1 charged now, 0 charged before (this click id, or this shown ad).
redis.call('HSETNX', KEYS[3], 'epoch', ARGV[1])
local outcomes, totals, charged, clicks = {}, {}, {}, {}
local function change(...)
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], '*', 'n', redis.call('HINCRBY', KEYS[3], 'sequence', 1), ...)
end
for click = 1, (#KEYS - 4) / 3 do
  local id, shown, revenue = KEYS[3 * click + 2], KEYS[3 * click + 3], KEYS[3 * click + 4]
  local advertiser, price, query = ARGV[3 * click + 5], ARGV[3 * click + 6], ARGV[3 * click + 7]
  if redis.call('EXISTS', id, shown) > 0 then
    outcomes[click] = 0
  else
    redis.call('SET', id, 1, 'EX', ARGV[3])
    redis.call('SET', shown, 1, 'EX', ARGV[3])
    redis.call('HINCRBY', revenue, 'clicks', 1)
    redis.call('HINCRBY', revenue, 'revenue_micros', price)
    redis.call('HSET', revenue, 'last_click_ms', ARGV[7])
    redis.call('EXPIRE', revenue, ARGV[5])
    if redis.call('ZADD', KEYS[4], ARGV[7], query) == 1 then
      change('op', 'earning', 'id', query)
    end
    if totals[advertiser] == nil then
      charged[#charged + 1], clicks[advertiser] = advertiser, {}
    end
    table.insert(clicks[advertiser], string.match(shown, '[^:]+:[^:]+$')) -- answer id, in hexadecimal, and ad id
    totals[advertiser] = redis.call('HINCRBY', KEYS[1], advertiser, price)
    outcomes[click] = 1
  end
end
for _, advertiser in ipairs(charged) do
  -- '%.0f' because Lua would print large totals in scientific notation.
  local micros = string.format('%.0f', totals[advertiser])
  change('op', 'spend', 'id', advertiser, 'day', ARGV[6], 'micros', micros, 'clicks', table.concat(clicks[advertiser], ' '))
end
if #charged > 0 then
  redis.call('EXPIRE', KEYS[1], ARGV[4])
  redis.call('ZREMRANGEBYSCORE', KEYS[4], '-inf', string.format('(%.0f', ARGV[7] - 1000 * ARGV[5]))
end
return outcomes
