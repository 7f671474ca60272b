-- One application's limits over all routers, decided atomically. `rate_window.py` and `usage_ledger.py` decide
-- the same within one router.
--
-- KEYS[1]: a hash. Fields: `r:SLOT` requests and `t:SLOT` tokens admitted in a second of the last minute;
--   `o:ROUTER` = COUNT:EXPIRY, requests in progress in a router, and until when (ms) this count is valid.
-- ARGV: this router; its requests in progress, without those decided here; milliseconds for which this count
--   is valid; most concurrent requests; most requests per minute; most tokens per minute (-1: no limit); now in
--   milliseconds (empty: Redis' own clock); number of corrections; then SLOT, CHANGE of each; then the tokens
--   of each request to decide.
-- Returns: slot; requests used; ms until none of them counts; tokens used; ms until none of them counts;
--   then for each request: 0 admitted, else the limit that is reached (1, 2, 3 in the order of ARGV); wait, ms.
local SLOTS = 60
local router, open, lease_ms = ARGV[1], tonumber(ARGV[2]), tonumber(ARGV[3])
local most_open, most_requests, most_tokens = tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local now_ms = tonumber(ARGV[7])
if not now_ms then
  local time = redis.call('TIME')
  now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
end
local slot = math.floor(now_ms / 1000)

local used = {r = {}, t = {}}
local sum = {r = 0, t = 0}
local open_in_others = 0
local stale, changed = {}, {}

local state = redis.call('HGETALL', KEYS[1])
for i = 1, #state, 2 do
  local kind, name, value = string.sub(state[i], 1, 1), string.sub(state[i], 3), state[i + 1]
  if kind == 'o' then
    local count, expiry = string.match(value, '^(%d+):(%d+)$')
    if tonumber(expiry) <= now_ms then
      stale[#stale + 1] = state[i]
    elseif name ~= router then
      open_in_others = open_in_others + tonumber(count)
    end
  elseif tonumber(name) < slot - SLOTS then
    stale[#stale + 1] = state[i]
  else
    used[kind][tonumber(name)] = tonumber(value)
    sum[kind] = sum[kind] + tonumber(value)
  end
end

local function take(kind, at, amount)
  used[kind][at] = (used[kind][at] or 0) + amount
  sum[kind] = sum[kind] + amount
  changed[kind .. ':' .. string.format('%d', at)] = used[kind][at]
end

-- Returns the milliseconds until `excess` of the usage no longer counts.
local function wait(kind, excess)
  for at = slot - SLOTS, slot do
    excess = excess - (used[kind][at] or 0)
    if excess <= 0 then
      return (at + SLOTS + 1) * 1000 - now_ms
    end
  end
  return -1
end

-- Returns the milliseconds until none of the usage counts any more.
local function reset(kind)
  for at = slot, slot - SLOTS, -1 do
    if (used[kind][at] or 0) > 0 then
      return (at + SLOTS + 1) * 1000 - now_ms
    end
  end
  return 0
end

local function refusal(tokens)
  if most_tokens >= 0 and tokens > most_tokens then
    return 3, -1
  elseif most_open >= 0 and open_in_others + open >= most_open then
    return 1, 1000
  elseif most_requests >= 0 and sum.r >= most_requests then
    return 2, wait('r', sum.r + 1 - most_requests)
  elseif most_tokens >= 0 and sum.t + tokens > most_tokens then
    return 3, wait('t', sum.t + tokens - most_tokens)
  end
  return 0, 0
end

local corrections = tonumber(ARGV[8])
for i = 9, 8 + 2 * corrections, 2 do
  local at, change = tonumber(ARGV[i]), tonumber(ARGV[i + 1])
  if at >= slot - SLOTS and used.t[at] then
    take('t', at, change)
  elseif change > 0 then
    take('t', slot, change)
  end
end

local verdicts = {}
for i = 9 + 2 * corrections, #ARGV do
  local tokens = tonumber(ARGV[i])
  local code, wait_ms = refusal(tokens)
  if code == 0 then
    open = open + 1
    take('r', slot, 1)
    take('t', slot, tokens)
  end
  verdicts[#verdicts + 1] = code
  verdicts[#verdicts + 1] = wait_ms
end

for field, value in pairs(changed) do
  redis.call('HSET', KEYS[1], field, string.format('%d', value))
end
if open > 0 then
  redis.call('HSET', KEYS[1], 'o:' .. router, string.format('%d:%d', open, now_ms + lease_ms))
else
  redis.call('HDEL', KEYS[1], 'o:' .. router)
end
if #stale > 0 then
  redis.call('HDEL', KEYS[1], unpack(stale))
end
redis.call('PEXPIRE', KEYS[1], (SLOTS + 1) * 1000 + lease_ms)

return {slot, sum.r, reset('r'), sum.t, reset('t'), unpack(verdicts)}
