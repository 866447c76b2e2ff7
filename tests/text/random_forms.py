"""Random JSON schemas, regular expressions and EBNF grammars, each with texts that have the form and texts near them.

What the two matchers may differ in, and so is not made:
- our schemas allow less white space (none, one space, or a line break and spaces), so texts have the two common forms;
- objects with named properties take no others here, and neither does xgrammar's strict mode;
- the integer -0, which xgrammar does not take;
- numbers of more than 18 digits and exponents of more than 3, which ours do not write;
- control characters in strings, which xgrammar takes though JSON has none there;
- escapes beside strings of bounded length, in which xgrammar takes none;
- enum and const of arrays and objects, whose spaces differ.

What is made and may be refused: grammars whose open brackets can be of several rules, since ours keeps a stack for each.
"""

import json
import random
import re

WORDS = ["", "a", "bc", "x y", "é", "東京", "😀", "a-1", "ab", "zz9"]
PATTERNS = {"[a-c]+": ["a", "abc", "cc"], "(ab|cd)*x?": ["", "ab", "cdabx"], "[0-9]{2,3}-[a-z]": ["12-a", "123-z"], "a.c": ["abc", "a-c"]}
NOISE = ['"', "{", "}", "[", "]", ",", ":", "0", "1", "-", ".", "e", "a", "b", "x", "null", "true", "é", "\\", "+"]
ODD_NUMBER = re.compile(r"-0(?![.\d])|\d{19}|[eE][+-]?\d{4}")


class Schemas:
    def __init__(self, seed):
        self.random = random.Random(seed)
        self.names = 0

    def scalar(self):
        r = self.random
        return r.choice([None, True, False, r.randrange(-50, 50), r.choice(WORDS), 1.5])

    def schema(self, depth=3):
        r = self.random
        kind = r.choice(["integer", "number", "boolean", "null", "string", "length", "pattern", "enum", "const", "types", "any"]
                        + (["array", "object", "object", "map", "anyOf"] if depth else []))  # fmt: skip
        if kind in ("integer", "number", "boolean", "null", "string"):
            return {"type": kind}
        if kind == "length":
            low = r.randrange(3)
            return {"type": "string", "minLength": low, "maxLength": low + r.randrange(4)}
        if kind == "pattern":
            return {"type": "string", "pattern": r.choice(list(PATTERNS))}
        if kind == "enum":
            return {"enum": list({json.dumps(v): v for v in (self.scalar() for _ in range(3))}.values())}
        if kind == "const":
            return {"const": self.scalar()}
        if kind == "types":
            return {"type": r.sample(["integer", "boolean", "null", "string"], 2)}
        if kind == "any":
            return {}
        if kind == "array":
            low = r.randrange(3)
            bounds = r.choice([{}, {"minItems": low}, {"minItems": low, "maxItems": low + r.randrange(3)}])
            return {"type": "array", "items": self.schema(depth - 1), **bounds}
        if kind == "map":
            return {"type": "object", "additionalProperties": self.schema(depth - 1)}
        if kind == "anyOf":
            return {"anyOf": [self.schema(depth - 1) for _ in range(r.randrange(1, 4))]}
        keys = r.sample(["a", "b", "name", "n b", "é"], r.randrange(1, 4))
        required = [k for k in keys if r.random() < 0.5]
        return {"type": "object", "properties": {k: self.schema(depth - 1) for k in keys}, "required": required, "additionalProperties": False}

    def value(self, schema, depth=4):
        """One that the schema takes."""
        r = self.random
        if "enum" in schema:
            return r.choice(schema["enum"])
        if "const" in schema:
            return schema["const"]
        if "anyOf" in schema:
            return self.value(r.choice(schema["anyOf"]), depth)
        kind = schema.get("type", r.choice(["integer", "string", "null", "array"] if depth else ["null"]))
        if isinstance(kind, list):
            kind = r.choice(kind)
        if kind == "integer":
            return r.choice([0, -1, 7, 120, -99999])
        if kind == "number":
            return r.choice([0, -1, 2.5, -0.125, 1e30, 3e-5])
        if kind == "boolean":
            return r.random() < 0.5
        if kind == "null":
            return None
        if kind == "string":
            if "pattern" in schema:
                return r.choice(PATTERNS[schema["pattern"]])
            low, high = schema.get("minLength", 0), schema.get("maxLength")
            if high is None:
                return r.choice([*WORDS, 'q"uote', "back\\slash", "tab\t"])
            return "".join(r.choice("ab é東9") for _ in range(r.randrange(low, high + 1)))
        if kind == "array":
            low = schema.get("minItems", 0)
            return [self.value(schema.get("items", {}), depth - 1) for _ in range(r.randrange(low, schema.get("maxItems", low + 2) + 1))]
        if "properties" not in schema:
            return {k: self.value(schema.get("additionalProperties", {}), depth - 1) for k in r.sample(WORDS[1:6], r.randrange(3))}
        required = schema["required"]
        return {k: self.value(s, depth - 1) for k, s in schema["properties"].items() if k in required or r.random() < 0.5}

    def case(self, texts):
        r = self.random
        schema = self.schema()
        out = []
        for _ in range(texts):
            value = self.value(schema if r.random() < 0.8 else self.schema())
            if isinstance(value, dict) and value and r.random() < 0.2:
                value.pop(r.choice(list(value)))
            separators = r.choice([(",", ":"), (", ", ": ")])
            text = json.dumps(value, separators=separators, ensure_ascii=r.random() < 0.1)
            out.append(mutated(text, NOISE, r) if r.random() < 0.4 else text)
        out = [text for text in out if not ODD_NUMBER.search(text)]
        if "Length" in json.dumps(schema):
            out = [text for text in out if "\\" not in text]
        return "json", schema, out


def mutated(text, alphabet, r):
    at = r.randrange(len(text) + 1)
    return text[:at] + r.choice([r.choice(alphabet), ""]) + text[at + r.randrange(2):]


class Expressions:
    """Regular expressions; each part comes with a text that it matches."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def part(self, depth=3):
        r = self.random
        kind = r.choice(["letter", "class", "dot"] + (["group", "sequence", "sequence", "repeat", "repeat"] if depth else []))
        if kind == "letter":
            c = r.choice(["a", "b", "c", "1", " ", "é", "\\.", "\\+"])
            return c, lambda: c[-1]
        if kind == "class":
            c = r.choice(["[abc]", "[a-c1]", "[^a]", "\\d", "\\w"])
            return c, lambda: {"[^a]": "b", "\\d": "1", "\\w": "c"}.get(c, "a")
        if kind == "dot":
            return ".", lambda: r.choice(["a", "é", "1"])
        if kind == "group":
            one, two = self.part(depth - 1), self.part(depth - 1)
            return f"({one[0]}|{two[0]})", lambda: r.choice([one, two])[1]()
        if kind == "sequence":
            parts = [self.part(depth - 1) for _ in range(r.randrange(2, 4))]
            return "".join(p[0] for p in parts), lambda: "".join(p[1]() for p in parts)
        low = r.randrange(3)
        times, most = r.choice([("*", 3), ("+", 3), ("?", 1), (f"{{{low},{low + 2}}}", low + 2), (f"{{{low}}}", low)])
        least = {"*": 0, "+": 1, "?": 0}.get(times, low)
        inner = self.part(depth - 1)
        return f"({inner[0]}){times}", lambda: "".join(inner[1]() for _ in range(r.randrange(least, most + 1)))

    def case(self, texts):
        r = self.random
        source, text = self.part()
        made = [text() for _ in range(texts)]
        return "regex", source, [mutated(t, list("abc1 é.+"), r) if r.random() < 0.5 else t for t in made]


class Grammars:
    """EBNF whose rules refer to later ones, and to earlier ones behind a letter."""

    def __init__(self, seed):
        self.random = random.Random(seed)

    def case(self, texts):
        r = self.random
        count = r.randrange(2, 5)
        rules = [[[self.item(i, count) for _ in range(r.randrange(1, 4))] for _ in range(r.randrange(1, 4))] for i in range(count)]
        for alternatives in rules:
            alternatives.append([('"a"', lambda depth: "a")])  # an end to recursion
        self.rules = rules
        name = lambda i: f"r{i}" if i else "root"  # noqa: E731
        lines = [f"{name(i)} ::= " + " | ".join(" ".join(item[0] for item in one) for one in rule) for i, rule in enumerate(rules)]
        made = [self.text(0, 6) for _ in range(texts)]
        return "ebnf", "\n".join(lines) + "\n", [mutated(t, list("abcx(1"), r) if r.random() < 0.5 else t for t in made]

    def text(self, rule, depth):
        one = self.random.choice(self.rules[rule]) if depth > 0 else self.rules[rule][-1]
        return "".join(item[1](depth - 1) for item in one)

    def item(self, i, count):
        r = self.random
        kind = r.choice(["text", "class", "later", "earlier", "many"])
        if kind == "later" and i + 1 < count:
            j = r.randrange(i + 1, count)
            return f"r{j}", lambda depth: self.text(j, depth)
        if kind == "earlier":
            j = r.randrange(i + 1)
            return f'"(" {f"r{j}" if j else "root"} ")"', lambda depth: "(" + self.text(j, depth) + ")"
        if kind == "many":
            return '("b" [0-9]?)*', lambda depth: r.choice(["", "b", "b1b"])
        if kind == "class":
            return "[a-cx]", lambda depth: r.choice("abcx")
        return '"ab"', lambda depth: "ab"
