-- wrk asks for labels of texts that never repeat; prints what it saw as one line of JSON.
-- Arguments: a seed, and the file of a picture in base64 that every fifth item then has.
local words = {"red", "old", "house", "with", "garden", "chart", "arrow", "left", "cloud", "music", "note", "cat",
  "small", "window", "tree", "water", "bottle", "open", "door", "key", "star", "night", "bus", "stop", "heart"}
local number, me, picture = 0, 0, nil

function setup(thread)
  me = me + 1
  thread:set("seed", me)
end

function init(args)
  math.randomseed(seed * 7919 + (tonumber(args[1]) or 0))
  if args[2] then
    local file = assert(io.open(args[2]))
    picture = file:read("*a")
    file:close()
  end
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  number = number + 1
  local text = {}
  for i = 1, math.random(2, 6) do text[i] = words[math.random(#words)] end
  text[#text + 1] = tostring(number)
  local images = ""
  if picture and number % 5 == 0 then images = ', "images": ["' .. picture .. '"]' end
  return wrk.format(nil, nil, nil, '{"items": [{"texts": ["' .. table.concat(text, " ") .. '"]' .. images .. '}]}')
end

function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "seconds": %.3f, "p50": %.2f, "p95": %.2f, "p99": %.2f, "max": %.2f, "not_ok": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
