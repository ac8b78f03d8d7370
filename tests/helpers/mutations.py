"""Damaged files for fuzzing: small sound ones with bits flipped, parts cut out, repeated or exchanged, huge numbers."""

from __future__ import annotations

from hypothesis import strategies as st

# Numbers that formats hold in one form or another: borders of their types, and what overflows when multiplied.
_HUGE = (0, 1, 0x7F, 0xFF, 0x7FFF, 0xFFFF, 0x7FFFFFFF, 0xFFFFFFFF, 0x7FFFFFFFFFFFFFFF, 0xFFFFFFFFFFFFFFFF)
_WORDS = (
    b"-1",
    b"0",
    b"9" * 9,
    b"9" * 30,
    b"1e999",
    b"NaN",
    b"null",
    b"[]",
    b"{}",
    b'""',
    b"true",
    b"\xff\xfe",
    b"&a *a",
)


@st.composite
def damaged(draw: st.DrawFn, samples: tuple[bytes, ...]) -> bytes:
    """One of the samples after one to four changes."""
    data = bytearray(draw(st.sampled_from(samples)))
    for _ in range(draw(st.integers(1, 4))):
        place = draw(st.integers(0, max(len(data) - 1, 0)))
        kind = draw(st.sampled_from(("bit", "byte", "number", "digits", "cut", "remove", "repeat", "splice", "insert")))
        length = draw(st.integers(1, 64))
        if kind == "bit" and data:
            data[place] ^= 1 << draw(st.integers(0, 7))
        elif kind == "byte" and data:
            data[place] = draw(st.integers(0, 255))
        elif kind == "number":
            size, order = draw(st.sampled_from((1, 2, 4, 8))), draw(st.sampled_from(("little", "big")))
            value = draw(st.sampled_from(_HUGE)) & (256**size - 1)
            data[place : place + size] = value.to_bytes(size, order)  # type: ignore[arg-type]
        elif kind == "digits":
            digits = [at for at, byte in enumerate(data) if 48 <= byte < 58]
            if digits:
                at = draw(st.sampled_from(digits))
                data[at : at + 1] = draw(st.sampled_from(_WORDS))
        elif kind == "cut":
            del data[place:]
        elif kind == "remove":
            del data[place : place + length]
        elif kind == "repeat":
            data[place:place] = data[place : place + length] * draw(st.sampled_from((1, 2, 50)))
        elif kind == "splice":
            other = draw(st.sampled_from(samples))
            start = draw(st.integers(0, max(len(other) - 1, 0)))
            data[place : place + length] = other[start : start + length]
        else:
            data[place:place] = draw(st.one_of(st.sampled_from(_WORDS), st.binary(max_size=16)))
    return bytes(data)


_NUMBERS = st.one_of(
    st.integers(-3, 300), st.integers(), st.floats(), st.sampled_from((2**31, 2**62, 2**63, 10**30, 1e308, -1e308))
)
_PLAIN = st.one_of(
    st.none(), st.booleans(), _NUMBERS, st.text(max_size=8), st.sampled_from(("../x", "a.png", "/etc", "\0"))
)


def values(depth: int = 2) -> st.SearchStrategy:
    """Whatever JSON or YAML can hold."""
    return st.recursive(
        _PLAIN,
        lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
        max_leaves=4 * depth,
    )


@st.composite
def altered(draw: st.DrawFn, whole: object) -> object:
    """A JSON-like value with one to three of its parts replaced by others."""
    for _ in range(draw(st.integers(1, 3))):
        whole = _replaced(draw, whole)
    return whole


def _replaced(draw: st.DrawFn, value: object) -> object:
    if isinstance(value, dict) and value and draw(st.integers(0, 9)):
        key = draw(st.sampled_from(sorted(value)))
        if draw(st.integers(0, 9)) == 0:
            return {name: inner for name, inner in value.items() if name != key}
        return {**value, key: _replaced(draw, value[key])}
    if isinstance(value, list) and value and draw(st.integers(0, 9)):
        place = draw(st.integers(0, len(value) - 1))
        return [*value[:place], _replaced(draw, value[place]), *value[place + 1 :]]
    return draw(values(1))
