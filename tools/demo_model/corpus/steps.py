"""Arithmetic one size up: numbers of up to five digits, and two operations one after the other."""
from . import arith
from .split import EVAL, draw

kTwo = {"add": "+", "sub": "-", "mul": "*"}
kAsk = ["What is {e}?", "Compute {e}.", "Calculate {e}", "{e} = ?", "{e}", "What's {e}?", "Please work out {e}."]


def _number(rng):
    return rng.randint(1, 10 ** rng.choice((2, 3, 4, 5, 5)) - 1)


def _one(rng, first=None):
    op = rng.choice(("add", "sub", "add", "sub", "mul"))
    a = _number(rng) if first is None else first
    b = rng.randint(2, 9) if op == "mul" else _number(rng)
    if op == "sub" and a < b:
        if first is None:
            a, b = b, a
        else:
            b = rng.randint(1, max(1, a))
    return op, a, b


def _sample(rng):
    """(key, (expression, steps)); every step is (operation, a, b)"""
    op, a, b = _one(rng)
    if rng.random() < 0.45:
        return arith.key_of(op, a, b), (f"{a} {kTwo[op]} {b}", [(op, a, b)])
    result = arith.result(op, a, b)
    while result > 99999:
        op, a, b = _one(rng)
        result = arith.result(op, a, b)
    second, _, c = _one(rng, result)
    head = f"{a} {kTwo[op]} {b}"
    if second == "mul" and op != "mul":
        head = f"({head})"
    return f"two:{op}:{a}:{b}:{second}:{c}", (f"{head} {kTwo[second]} {c}", [(op, a, b), (second, result, c)])


def exchange(rng, split):
    key, (expression, steps) = draw(rng, split, _sample)
    return key, [{"role": "user", "content": rng.choice(kAsk).format(e=expression)},
                 {"role": "assistant", "reasoning_content": " ".join(arith.scratchpad(*s) for s in steps), "content": str(arith.result(*steps[-1]))}]


def eval_items(rng, count):
    items = []
    while len(items) < count:
        key, (question, reply) = exchange(rng, EVAL)
        parts = key.split(":")
        if len(parts) == 3 and arith.spelled_in_dates(parts[0], int(parts[1]), int(parts[2])):
            continue
        items.append({"messages": [question], "thinking": True, "max_tokens": 280, "answer": {"type": "text", "text": reply["content"]},
                      "thought": reply["reasoning_content"]})
    return items
