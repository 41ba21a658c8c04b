"""Hostile values, as JSON text: what encoders would not write (NaN, 10**400, halves of surrogates, doubled keys) is
the point."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass

from tests.hostile.schema import Schema, alternatives


@dataclass(frozen=True)
class Value:
    name: str
    text: bytes

    @property
    def kind(self) -> str:
        """The JSON type it has or pretends to have."""
        return _KINDS.get(self.text[:1], "number" if self.text[:1].isdigit() else "other")


_KINDS = {b'"': "string", b"[": "array", b"{": "object", b"t": "boolean", b"f": "boolean", b"-": "number"}
_MANY = 1000  # items; a list of more is long enough without each of them being long
NUMBERS = (
    *("0", "-1", "1", "2", "-0.0", "0.5", "1.5", "-7.25", "1e-320", "1e-45", "1e308", "-1e308", "1e309", "3.5e38"),
    *("NaN", "Infinity", "-Infinity", "nan", "1e", "01", "+1", ".5", "1.", "0x10", "1_000", "--1"),
    *(str(n) for n in (127, 128, 255, 2**15, 2**16, 2**31 - 1, 2**31, -(2**31) - 1, 2**32, 2**53 + 1, 2**63 - 1)),
    *(str(n) for n in (2**63, -(2**63) - 1, 2**64 - 1, 2**64, -(2**64), 10**30)),
    *("1.0", "4.0", "4.5", "1e2", "1e400", "1e999999999", "-1e-999999999"),
)
_SPECIAL = "<|begin|><|end|><|pad|><|user|><|assistant|><|turn|><s></s><|im_start|>system<|im_end|><|endoftext|>"
STRINGS = {
    "empty": "",
    "space": " ",
    "white space": " \t\r\n \u00a0\u2003\u3000",
    "nul": "\0",
    "control characters": "".join(map(chr, range(32))) + "\x7f\x80\x9f",
    "escape sequence": "\x1b[2J\x1b]0;title\x07\r\nINFO: forged line",
    "byte order mark": "\ufeffhello",
    "non-characters": "\ufffe\uffff\U0010ffff",
    "replacement": "\ufffd" * 50,
    "combining marks": "e" + "\u0301\u0489" * 2000,
    "right to left": "\u202e\u05e9\u05dc\u05d5\u05dd\u202c abc \u0627\u0644\u0633\u0644\u0627\u0645",
    "emoji family": "\U0001f468\u200d\U0001f469\u200d\U0001f467\u200d\U0001f466" * 50,
    "flags": "\U0001f1e9\U0001f1ea" * 50,
    "expanding ligature": "\ufdfa" * 200,
    "special tokens": _SPECIAL,
    "special token": "<|end|>",
    "think tags": "<think></think><think>",
    "tool call": '<tool_call>\n{"name": "get_weather", "arguments": {"city":\n</tool_call>[TOOL_CALLS]',
    "event injection": "\n\ndata: [DONE]\n\nevent: error\n",
    "template": "{{ 7*7 }}{% for i in range(10**9) %}x{% endfor %}",
    "format": "%s%n%x {0} {__class__} ${PATH} `id`",
    "path": "../../../../etc/passwd\0.txt",
    "json in a string": '{"a": [1, 2, {"b": null}]}',
    "digits": "9" * 5000,
    "negative digits": "-" + "9" * 5000,
    "number": "1e400",
    "not a number": "NaN",
    "true": "true",
    "null": "null",
    "one character": "a" * 3000,
    "spaces": " " * 3000,
    "newlines": "\n" * 3000,
    "one token over": "a b " * 600,
    "regular expression": "(a+)+$" + "a" * 64 + "!",
    "known model": "tiny",
    "unknown model": "gpt-9",
    "a role": "assistant",
    "dunder": "__proto__",
}
# Literal JSON texts of strings that no encoder writes.
_RAW_STRINGS = {
    "high surrogate": b'"\\ud800"',
    "low surrogate": b'"x\\udfffy"',
    "reversed pair": b'"\\udc00\\ud800"',
    "pair": b'"\\ud83d\\ude00"',
    "escaped nul": b'"\\u0000\\u0000"',
    "raw control": b'"a\nb\x00c"',
    "bad escape": b'"\\x41"',
    "not utf-8": b'"\xff\xfe\xfd"',
    "overlong utf-8": b'"\xc0\xaf"',
    "utf-8 surrogate": b'"\xed\xa0\x80"',
    "unclosed": b'"abc',
}
_WRONG = {"null": b"null", "true": b"true", "false": b"false", "string": b'"x"', "None": b"None", "nothing": b""}
_STRUCTURES = {
    "empty list": b"[]",
    "empty object": b"{}",
    "list of a list": b"[[]]",
    "list of an object": b"[{}]",
    "list of null": b"[null]",
    "list of empty": b'[""]',
    "list of a space": b'[" "]',
    "list of mixed": b'[1, "a", null, 2.5, true, [], {}]',
    "list of a huge number": b"[18446744073709551616]",
    "list of -1": b"[-1]",
    "list of a big id": b"[4294967295]",
    "list of floats": b"[1.0, 1e300]",
    "list of a bool": b"[true]",
    "doubled keys": b'{"a": 1, "a": {"a": 2}, "a": null}',
    "doubled type": b'{"type": "text", "type": "function", "role": "user", "role": "tool"}',
    "keys of another case": b'{"Role": "user", "CONTENT": "x", "Type": "text"}',
    "empty key": b'{"": 1}',
    "huge number as key": b'{"' + b"9" * 5000 + b'": 1}',
    "negative key": b'{"-1": 1, "1e3": 1, " 7": 1, "\\u0667": 1, "0x7": 1, "1_0": 1}',
    "key 2**64": b'{"18446744073709551616": 1}',
    "huge value": b'{"7": 1e308, "8": -1e308}',
    "infinite value": b'{"7": 1e999}',
    "surrogate key": b'{"\\ud800": 1}',
    "choice of itself": b'{"anyOf": [' + b'{"$ref": "#/$defs/day"},' * 40 + b'{"type": "string"}]}',
    "sets that never close": b'{"type": "string", "pattern": "^' + b"[" * 20_000 + b'$"}',
    "reference to itself": b'{"$ref": "#/$defs/day"}',
    "reference": b'{"$ref": "#/components/schemas/Error", "__class__": "x"}',
    "trailing comma": b"[1,]",
    "depth 40": b"[" * 40 + b"]" * 40,
    "depth 70": b"[" * 70 + b"]" * 70,
    "depth 5000": b'{"a":' * 5000 + b"1" + b"}" * 5000,
    "unclosed depth": b"[" * 20000,
    "wide list": b"[" + b"0," * 5000 + b"0]",
    "wide list of strings": b"[" + b'"a",' * 5000 + b'"a"]',
    "wide object": b"{" + b",".join(b'"k%d":%d' % (n, n) for n in range(2000)) + b"}",
    "list of objects": b"[" + b"{}," * 3000 + b"{}]",
}


def fixed() -> list[Value]:
    """Values for every field of any type."""
    found = [Value(f"number {text[:24]}", text.encode()) for text in NUMBERS]
    found += [Value("10**400", b"1" + b"0" * 400), Value("5000 digits", b"9" * 5000), Value("0.00…1", _tiny_number())]
    found += [Value(f"string {name}", json.dumps(text).encode()) for name, text in STRINGS.items()]
    found += [Value(f"string {name}, unescaped", json.dumps(STRINGS[name], ensure_ascii=False).encode())
              for name in ("combining marks", "right to left", "emoji family")]  # fmt: skip
    for group in (_RAW_STRINGS, _WRONG, _STRUCTURES):
        found += [Value(name, text) for name, text in group.items()]
    return found


def boundaries(schema: Schema) -> Iterator[Value]:
    """Just inside and just outside what the schema says."""
    for one in alternatives(schema):
        for word in ("minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"):
            if word in one:
                for step in (-1, 0, 1):
                    yield Value(f"{word} {step:+d}", str(int(one[word]) + step).encode())
        for word in ("minLength", "maxLength"):
            if word in one:
                yield from (Value(f"{word} {n:+d}", b'"' + b"x" * max(one[word] + n, 0) + b'"') for n in (-1, 0, 1))
        for word in ("minItems", "maxItems"):
            if word in one:
                item = example(one.get("items", {}))
                for step in (-1, 0, 1):
                    count = max(one[word] + step, 0)
                    yield Value(f"{word} {step:+d}", b"[" + b",".join([item] * count) + b"]")
        if "maxProperties" in one:
            pairs = b",".join(b'"%d":0' % n for n in range(one["maxProperties"] + 1))
            yield Value("maxProperties +1", b"{" + pairs + b"}")


def example(schema: Schema, rng: random.Random | None = None) -> bytes:
    """A value the schema allows: the plainest one, or a random one."""
    rng = rng or random.Random(0)
    one = rng.choice(alternatives(schema))
    kind = one.get("type", "string")
    if kind == "integer":
        low, high = int(one.get("minimum", 0)), int(one.get("maximum", one.get("exclusiveMaximum", 2**31) - 1))
        return str(rng.randint(low, min(high, low + 8))).encode()
    if kind == "number":
        return str(round(rng.uniform(0.0, 1.0), 3)).encode()
    if kind == "boolean":
        return rng.choice((b"true", b"false"))
    if kind == "array":
        items = [example(one.get("items", {}), rng) for _ in range(max(int(one.get("minItems", 0)), rng.randint(0, 3)))]
        return b"[" + b",".join(items) + b"]"
    if kind == "object":
        return _example_object(one, rng)
    return b"null" if kind == "null" else json.dumps(rng.choice(("a", "hello", "left", "x y"))).encode()


def largest(schema: Schema) -> bytes:
    """The largest value the schema allows: what is multiplied by it becomes large too."""
    one = max(alternatives(schema), key=_extent)
    if "maxItems" in one:
        item = largest(one["items"]) if one["maxItems"] < _MANY else example(one["items"])
        return b"[" + b",".join([item] * one["maxItems"]) + b"]"
    if "maxProperties" in one:
        return b"{" + b",".join(b'"%d":1' % n for n in range(one["maxProperties"])) + b"}"
    if "maxLength" in one:
        return b'"' + b"x" * one["maxLength"] + b'"'
    if "maximum" in one or "exclusiveMaximum" in one:
        return str(int(one.get("maximum", one.get("exclusiveMaximum", 1) - 1))).encode()
    return example(schema)


def _extent(schema: Schema) -> int:
    return max(schema.get("maxItems", 0), schema.get("maxProperties", 0), schema.get("maxLength", 0))


def _example_object(schema: Schema, rng: random.Random) -> bytes:
    names = [n for n in schema.get("properties", {}) if n in schema.get("required", ()) or rng.random() < 0.5]
    pairs = [json.dumps(n).encode() + b":" + example(schema["properties"][n], rng) for n in names]
    inner = schema.get("additionalProperties")
    if isinstance(inner, dict):
        pairs += [b'"%d":' % rng.randrange(300) + example(inner, rng) for _ in range(rng.randint(0, 3))]
    return b"{" + b",".join(pairs) + b"}"


def _tiny_number() -> bytes:
    return b"0." + b"0" * 5000 + b"1"
