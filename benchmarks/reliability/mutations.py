"""Mutate data files: bytes, tokens, lines, deep nesting. Readers must survive every mutation."""

from __future__ import annotations

import gzip
import io
import random
import re
import zipfile

TOKENS = [
    b"null", b"null}", b"null\n", b"{}", b"[]", b"[null]", b"\n", b"\r", b"\r\n", b"\0", b"\xff",
    b"\xef\xbb\xbf", b'"', b"'", b"\\", b"{", b"}", b"[", b"]", b",", b":", b"\t", b"_", b"-", b"->", b"NaN",
    b"Infinity", b"true", b"-1", b"1e999", b"9223372036854775807", b"9223372036854775808",
    b"-9223372036854775809", b"9" * 400, b"9" * 5000, b'"\\ud800"', b"\\ud800", b'"x"', b"1.5", b"2147483648",
    b"../", b"/", b" ",
]  # fmt: skip
OPENINGS = [b"[", b"{", b'{"a":', b"(", b'[{"a":', b"-"]


def mutate(name: str, raw: bytes, rng: random.Random) -> bytes:
    """Return mutated bytes of a file; compressed files are usually mutated inside."""
    if name.endswith(".gz") and rng.random() < 0.8:
        return gzip.compress(mutate_text(gzip.decompress(raw), rng), 1)
    if name.endswith(".npz") and rng.random() < 0.8:
        return _archive(raw, rng)
    if name.endswith((".parquet", ".arrow")):
        return _binary(raw, rng)
    return mutate_text(raw, rng)


def mutate_text(raw: bytes, rng: random.Random) -> bytes:
    """Apply one to three mutations."""
    for _ in range(rng.choice([1, 1, 2, 3])):
        raw = rng.choice(MUTATIONS)(raw, rng)
    return raw


def _binary(raw: bytes, rng: random.Random) -> bytes:
    """Flip bytes, mostly in the footer; sometimes apply any mutation."""
    if rng.random() < 0.15:
        return mutate_text(raw, rng)
    data = bytearray(raw)
    footer = 8 + int.from_bytes(raw[-8:-4], "little") if raw.endswith(b"PAR1") else len(raw) // 3
    low = max(0, len(raw) - footer) if rng.random() < 0.6 else 0
    for _ in range(rng.choice([1, 1, 1, 2, 4, 16])):
        place = rng.randrange(low, len(raw))
        data[place] = rng.choice([data[place] ^ 1 << rng.randrange(8), rng.randrange(256), 0, 255, 127, 128])
    return bytes(data)


def _archive(raw: bytes, rng: random.Random) -> bytes:
    """Change, drop or replace one member of a zip file."""
    with zipfile.ZipFile(io.BytesIO(raw)) as archive:
        members = {name: archive.read(name) for name in archive.namelist()}
    name = rng.choice(sorted(members))
    match rng.randrange(6):
        case 0:
            del members[name]
        case 1:
            members[name] = members[rng.choice(sorted(members))]
        case 2:
            members[name] = mutate_text(members[name], rng)
        case _:
            members[name] = _binary(members[name], rng)
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for one, data in members.items():
            archive.writestr(one, data)
    return buffer.getvalue()


def _flip(raw: bytes, rng: random.Random) -> bytes:
    data = bytearray(raw)
    for _ in range(min(rng.choice([1, 2, 8]), len(data))):
        data[rng.randrange(len(data))] = rng.randrange(256)
    return bytes(data)


def _cut(raw: bytes, rng: random.Random) -> bytes:
    return raw[: rng.randrange(len(raw) + 1)]


def _slice(raw: bytes, rng: random.Random) -> bytes:
    start = rng.randrange(len(raw) + 1)
    stop = min(len(raw), start + rng.randrange(1, 100))
    return raw[:start] + raw[start:stop] * rng.choice([0, 2, 3]) + raw[stop:]


def _insert(raw: bytes, rng: random.Random) -> bytes:
    place = rng.choice([0, len(raw), rng.randrange(len(raw) + 1), rng.randrange(len(raw) + 1)])
    return raw[:place] + rng.choice(TOKENS) + raw[place:]


def _nest(raw: bytes, rng: random.Random) -> bytes:
    """Replace a value, a line or a bracket with deep nesting, closed or not."""
    depth = rng.choice([3, 100, 2000])
    opening = rng.choice(OPENINGS)
    closing = {"[": b"]", "{": b"}", "(": b")", "a": b"}", "-": b""}[
        chr(opening[-1] if len(opening) == 1 else 97)
    ]
    nested = opening * depth + b"1" + rng.choice([closing * depth, b""])
    return _replace_one(
        raw, rng, rng.choice([rb'"[^"\n]{0,200}"', rb"(?<=\n).*(?=\n)", rb"\d+", rb"[\[\]{}]"]), nested
    )


def _token(raw: bytes, rng: random.Random) -> bytes:
    pattern = rng.choice(
        [
            rb'"[^"\n]{0,200}"',
            rb"'[^'\n]{0,200}'",
            rb"\b\d+\b",
            rb"[\w.]+",
            rb"\[[^\]\n]{0,200}\]",
            rb"\{[^}\n]{0,200}\}",
        ]
    )
    return _replace_one(raw, rng, pattern, rng.choice(TOKENS))


def _replace_one(raw: bytes, rng: random.Random, pattern: bytes, value: bytes) -> bytes:
    matches = list(re.finditer(pattern, raw))
    if not matches:
        return value + raw
    match = rng.choice(matches)
    return raw[: match.start()] + value + raw[match.end() :]


def _lines(raw: bytes, rng: random.Random) -> bytes:
    """Drop, repeat, swap, break or replace a line."""
    lines = raw.split(b"\n")
    one, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(5):
        case 0:
            del lines[one]
        case 1:
            lines.insert(one, lines[other])
        case 2:
            lines[one], lines[other] = lines[other], lines[one]
        case 3:
            lines = [line.replace(b" ", b"\n", 1) for line in lines]
        case _:
            lines[rng.choice([0, one])] = rng.choice(TOKENS)
    return b"\n".join(lines)


def _key(raw: bytes, rng: random.Random) -> bytes:
    """Rename one key everywhere."""
    names = sorted(set(re.findall(rb"[\"'](\w+)[\"'] ?:", raw)))
    return raw.replace(rng.choice(names), rng.choice([b"x", *names])) if names else raw


MUTATIONS = [_flip, _cut, _slice, _insert, _insert, _nest, _token, _token, _token, _lines, _lines, _key]
