"""Sorting, counting and picking from short lists of numbers or words."""
from .split import EVAL, draw
from .words import kAnimals, kCities, kFirstNames, kItems

kWordPools = (kItems, kAnimals, kCities, kFirstNames)
kTasks = ("up", "down", "abc", "count", "largest", "smallest", "reverse", "last")

kPhrasings = {
    "up": ["Sort these numbers: {x}", "Sort in ascending order: {x}", "Put these numbers in order: {x}",
           "Arrange from smallest to largest: {x}", "Please sort {x}."],
    "down": ["Sort in descending order: {x}", "Arrange from largest to smallest: {x}", "Sort these numbers from high to low: {x}"],
    "abc": ["Sort these words alphabetically: {x}", "Put these words in alphabetical order: {x}", "Alphabetize: {x}"],
    "count": ["How many items are in this list: {x}?", "Count the items: {x}", "How many things are listed here: {x}?"],
    "largest": ["Which number is the largest: {x}?", "What is the largest of {x}?", "Find the maximum: {x}"],
    "smallest": ["Which number is the smallest: {x}?", "What is the smallest of {x}?", "Find the minimum: {x}"],
    "reverse": ["Reverse this list: {x}", "Write this list backwards: {x}"],
    "last": ["What is the last item in this list: {x}?", "Which item comes last: {x}?"],
}


def _sample(rng):
    task = rng.choice(kTasks)
    numbers = task in ("up", "down", "largest", "smallest") or (task != "abc" and rng.random() < 0.4)
    length = rng.randint(3, 5 if task in ("up", "down", "abc") else 7)
    if numbers:
        top = rng.choice((20, 100, 1000))
        items = [str(n) for n in rng.sample(range(1, top), length)]
    else:
        items = rng.sample(rng.choice(kWordPools), length)
    return f"{task}:{','.join(items)}", (task, items)


def solve(task, items):
    if task in ("up", "down", "abc"):
        out = sorted(items, key=str.lower) if task == "abc" else sorted(items, key=int, reverse=task == "down")
        left, trace = list(items), []
        for item in out:
            left.remove(item)
            trace.append(f"take {item}" + (", left " + " ".join(left) if left else ""))
        return "; ".join(trace) + ".", ", ".join(out)
    if task == "count":
        return ", ".join(f"{x} {i}" for i, x in enumerate(items, 1)) + ".", str(len(items))
    if task in ("largest", "smallest"):
        best, trace = None, []
        for item in items:
            if best is None or (int(item) > int(best)) == (task == "largest"):
                best = item
            trace.append(f"{item}: {best}")
        return "; ".join(trace) + ".", best
    if task == "reverse":
        return "From the end: " + "; ".join(reversed(items)) + ".", ", ".join(reversed(items))
    return f"It ends with {items[-1]}.", items[-1]


def exchange(rng, split):
    key, (task, items) = draw(rng, split, _sample)
    thought, answer = solve(task, items)
    question = rng.choice(kPhrasings[task]).format(x=", ".join(items))
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": thought, "content": answer}]


def eval_items(rng, count):
    items = []
    for _ in range(count):
        _, (question, reply) = exchange(rng, EVAL)
        items.append({"messages": [question], "thinking": True, "max_tokens": 240,
                      "answer": {"type": "text", "text": reply["content"]}, "thought": reply["reasoning_content"]})
    return items
