"""Arithmetic with a column-by-column scratchpad in the think channel; the response is the bare number."""
from .split import EVAL, draw
from .words import kFirstNames

kOperations = ("add", "sub", "mul")  # of the suite; division and wider numbers are trained beside it

kPhrasings = {
    "add": ["What is {a} + {b}?", "Compute {a} + {b}.", "{a} plus {b}?", "How much is {a} plus {b}?", "{a} + {b}", "{a}+{b}",
            "What is {a} plus {b}?", "Add {a} and {b}.", "Calculate {a} + {b}", "What's {a} + {b}?", "{a} + {b} = ?",
            "Please add {b} to {a}.", "What is the sum of {a} and {b}?", "what is {a}+{b}", "Can you work out {a} + {b}?"],
    "sub": ["What is {a} - {b}?", "Compute {a} - {b}.", "{a} minus {b}?", "How much is {a} minus {b}?", "{a} - {b}", "{a}-{b}",
            "What is {a} minus {b}?", "Subtract {b} from {a}.", "Calculate {a} - {b}", "What's {a} - {b}?", "{a} - {b} = ?",
            "Please take {b} away from {a}.", "What is the difference {a} - {b}?", "what is {a}-{b}",
            "Can you work out {a} - {b}?"],
    "mul": ["What is {a} * {b}?", "Compute {a} * {b}.", "{a} times {b}?", "How much is {a} times {b}?", "{a} * {b}", "{a}*{b}",
            "What is {a} times {b}?", "Multiply {a} by {b}.", "Calculate {a} x {b}", "What's {a} x {b}?", "{a} * {b} = ?",
            "Please multiply {a} by {b}.", "What is the product of {a} and {b}?", "what is {a}*{b}",
            "Can you work out {a} * {b}?"],
    "div": ["What is {a} / {b}?", "Compute {a} / {b}.", "{a} divided by {b}?", "How much is {a} divided by {b}?", "{a} / {b}", "{a}/{b}",
            "Divide {a} by {b}.", "What is {a} divided by {b}?", "What's {a} / {b}?"],
}
kStories = {
    "add": ["{n} has {a} {i} and buys {b} more. How many {i} does {n} have now?", "There are {a} {i} here and {b} {i} there. How many in all?",
            "{n} found {a} {i} and then {b} more. How many is that?"],
    "sub": ["{n} has {a} {i} and gives away {b}. How many are left?", "There were {a} {i} and {b} were sold. How many are left?"],
    "mul": ["{n} has {a} boxes with {b} {i} in each. How many {i} is that?", "A bag holds {b} {i}. How many {i} are in {a} bags?"],
}
kThings = ["apples", "pears", "books", "pencils", "stamps", "coins", "eggs", "cards", "shells", "stones"]


def key_of(op: str, a: int, b: int) -> str:
    if op in ("add", "mul"):
        a, b = min(a, b), max(a, b)
    return f"{op}:{a}:{b}"


def _operand(rng):
    return rng.randint(0, 9) if rng.random() < 0.06 else rng.randint(10, 99) if rng.random() < 0.45 else rng.randint(100, 999)


def _sample_wide(rng):
    """The suite's range, and one size up in every sixth problem."""
    if rng.random() < 0.78:
        return _sample(rng)
    op = rng.choice((*kOperations, "div"))
    if op == "div":
        b = rng.randint(2, 9)
        a = b * rng.randint(2, 199)
    elif op == "mul":
        a, b = (rng.randint(100, 999), rng.randint(2, 9)) if rng.random() < 0.4 else (rng.randint(10, 99), rng.randint(10, 99))
    else:
        a, b = (rng.randint(1, 10 ** rng.randint(1, 5) - 1) for _ in range(2))
    if op == "sub" and a < b:
        a, b = b, a
    return key_of(op, a, b), (op, a, b)


def _sample(rng):
    op = rng.choice(kOperations)
    if op == "mul":
        a, b = rng.randint(10, 99), rng.randint(2, 9)
        if rng.random() < 0.12:
            a = rng.randint(2, 9)
    else:
        a, b = _operand(rng), _operand(rng)
        if op == "sub" and a < b and rng.random() < 0.85:
            a, b = b, a
    return key_of(op, a, b), (op, a, b)


def result(op, a, b):
    return {"add": a + b, "sub": a - b, "mul": a * b}[op] if op != "div" else a // b


def _add(a, b):
    steps, carry, da, db = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(max(len(da), len(db))):
        digits = [s[i] for s in (da, db) if i < len(s)] + (["1"] if carry else [])
        total = sum(map(int, digits))
        carry = total // 10
        step = "+".join(digits) + (f"={total}" if len(digits) > 1 else "")
        steps.append(step + (f" write {total % 10} carry 1" if carry else ""))
    if carry:
        steps.append("1")
    return steps


def _sub(a, b):
    steps, borrow, da, db = [], 0, str(a)[::-1], str(b)[::-1]
    for i in range(len(da)):
        top, parts = int(da[i]), [db[i]] if i < len(db) else []
        if borrow:
            parts.append("1")
        value = top - sum(map(int, parts))
        borrow = value < 0
        left = f"1{top}" if borrow else str(top)
        step = "-".join([left] + parts) + (f"={value + 10 * borrow}" if parts else "")
        steps.append(("borrow " if borrow else "") + step)
    return steps


def _mul(a, b):
    steps, carry = [], 0
    for digit in str(a)[::-1]:
        total = int(digit) * b + carry
        step = f"{digit}*{b}={int(digit) * b}" + (f", {int(digit) * b}+{carry}={total}" if carry else "")
        carry = total // 10
        steps.append(step + (f" write {total % 10} carry {carry}" if carry else ""))
    if carry:
        steps.append(str(carry))
    return steps


def _div(a, b):
    steps, rest = [], ""
    for digit in str(a):
        part = int(rest + digit)
        left = part % b
        steps.append(f"{part}/{b}={part // b}" + (f" rest {left}" if left else ""))
        rest = str(left) if left else ""
    return steps


def _wide_mul(a, b):
    low, high = a * (b % 10), a * (b // 10) * 10
    return [f"{a}*{b % 10}={low}", f"{a}*{b // 10 * 10}={high}", f"{low}+{high}: " + "; ".join(_add(low, high))]


def scratchpad(op, a, b) -> str:
    sign = {"add": "+", "sub": "-", "mul": "*", "div": "/"}[op]
    if op == "mul" and b > 9 and a <= 9:
        a, b = b, a
    answer = result(op, a, b)
    head = f"{a}{sign}{b}"
    if op == "sub" and a < b:
        return f"{head}: {a} is less than {b}, so minus {b}-{a}: " + "; ".join(_sub(b, a)) + f"; so {answer}."
    steps = {"add": _add, "sub": _sub, "mul": _mul if b <= 9 else _wide_mul, "div": _div}[op](a, b)
    return f"{head}: " + "; ".join(steps) + f"; so {answer}."


def exchange(rng, split):
    """One question with its answer: (key, messages)."""
    key, (op, a, b) = draw(rng, split, _sample if split == EVAL else _sample_wide)
    if op == "add" and rng.random() < 0.5:
        a, b = b, a
    story = op != "div" and rng.random() < 0.1 and not (op == "sub" and a < b)
    question = rng.choice((kStories if story else kPhrasings)[op]).format(a=a, b=b, n=rng.choice(kFirstNames), i=rng.choice(kThings))
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": scratchpad(op, a, b), "content": str(result(op, a, b))}]


def spelled_in_dates(op, a, b):
    """Whether training may spell this out as a step of a date or a conversion of weeks (measures.py): then no suite may ask it."""
    return max(a, b) <= 31 if op in ("add", "sub") else 7 in (a, b)


def follow_up(rng, split, previous):
    """A second turn that goes on from the last result."""
    def sample(rng):
        op = rng.choice(("add", "sub")) if previous > 99 or previous < 10 else rng.choice(kOperations)
        b = rng.randint(2, 9) if op == "mul" else rng.randint(1, max(1, previous)) if op == "sub" else rng.randint(2, 999)
        return key_of(op, previous, b), (op, previous, b)
    key, (op, a, b) = draw(rng, split, sample)
    question = rng.choice({"add": ["Add {b} to that.", "And plus {b}?", "Now add {b}."],
                           "sub": ["Subtract {b} from that.", "And minus {b}?", "Now take away {b}."],
                           "mul": ["Multiply that by {b}.", "And times {b}?", "Now multiply by {b}."]}[op]).format(b=b)
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": scratchpad(op, a, b), "content": str(result(op, a, b))}]


def eval_items(rng, count):
    items, seen = [], set()
    first = ("add:17:25", [{"role": "user", "content": "What is 17 + 25?"}], "42")
    while len(items) < count:
        if not items:
            key, messages, answer = first
            thought = scratchpad("add", 17, 25)
        else:
            key, (question, reply) = exchange(rng, EVAL)
            op, a, b = key.split(":")
            if spelled_in_dates(op, int(a), int(b)):
                continue
            messages, answer, thought = [question], reply["content"], reply["reasoning_content"]
        if key in seen:
            continue
        seen.add(key)
        items.append({"messages": messages, "thinking": True, "max_tokens": 160, "answer": {"type": "text", "text": answer},
                      "thought": thought})
    return items
