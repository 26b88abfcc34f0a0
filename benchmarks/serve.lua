-- wrk asks for labels of texts that never repeat; prints what it saw as one line of JSON.
local words = {"red", "old", "house", "with", "garden", "chart", "arrow", "left", "cloud", "music", "note", "cat",
  "small", "window", "tree", "water", "bottle", "open", "door", "key", "star", "night", "bus", "stop", "heart"}
local number, me = 0, 0

function setup(thread)
  me = me + 1
  thread:set("seed", me)
end

function init(args)
  math.randomseed(seed * 7919 + (tonumber(args[1]) or 0))
  wrk.method = "POST"
  wrk.headers["Content-Type"] = "application/json"
end

function request()
  number = number + 1
  local text = {}
  for i = 1, math.random(2, 6) do text[i] = words[math.random(#words)] end
  text[#text + 1] = tostring(number)
  return wrk.format(nil, nil, nil, '{"items": [{"texts": ["' .. table.concat(text, " ") .. '"]}]}')
end

function done(summary, latency, requests)
  io.write(string.format(
    '{"requests": %d, "seconds": %.3f, "p50": %.2f, "p95": %.2f, "p99": %.2f, "max": %.2f, "not_ok": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(95) / 1e3,
    latency:percentile(99) / 1e3, latency.max / 1e3, summary.errors.status,
    summary.errors.connect + summary.errors.read + summary.errors.write + summary.errors.timeout))
end
