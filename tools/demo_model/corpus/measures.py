"""Dates and units with the steps written out."""
from .split import EVAL, draw
from .words import kDays, kMonths

kLengths = [31, 28, 31, 30, 31, 30, 31, 31, 30, 31, 30, 31]
# (larger, smaller, how many of the smaller)
kUnits = [("km", "m", 1000), ("m", "cm", 100), ("cm", "mm", 10), ("kg", "g", 1000), ("hours", "minutes", 60), ("minutes", "seconds", 60),
          ("days", "hours", 24), ("weeks", "days", 7), ("years", "months", 12), ("feet", "inches", 12), ("dozens", "pieces", 12),
          ("liters", "ml", 1000), ("euros", "cents", 100), ("tons", "kg", 1000)]


def _product(n, factor):
    if factor in (10, 100, 1000):
        return f"{n}*{factor}={n * factor}."
    tens, ones = factor // 10 * 10, factor % 10
    if not tens:
        return f"{n}*{factor}={n * factor}."
    if not ones:
        return f"{n}*{tens}={n * tens}."
    return f"{n}*{tens}={n * tens}; {n}*{ones}={n * ones}; {n * tens}+{n * ones}={n * factor}."


def _sample(rng):
    """(key, (wordings, thought, answer))"""
    style = rng.randrange(6)
    if style == 0:
        big, small, factor = rng.choice(kUnits)
        n = rng.randint(2, 99)
        return f"unit:{n}:{big}", ([f"How many {small} are {n} {big}?", f"Convert {n} {big} to {small}.", f"{n} {big} in {small}?",
                                    f"What is {n} {big} in {small}?"], _product(n, factor), f"{n * factor} {small}")
    if style == 1:
        big, small, factor = rng.choice(kUnits)
        n = rng.randint(2, 99)
        return f"unit-up:{n}:{big}", ([f"How many {big} are {n * factor} {small}?", f"Convert {n * factor} {small} to {big}.",
                                       f"{n * factor} {small} in {big}?"], f"{n}*{factor}={n * factor}.", f"{n} {big}")
    if style == 2:
        day, n, back = rng.randrange(7), rng.randint(1, 20), rng.random() < 0.4
        end = (day + (-n if back else n)) % 7
        word = "before" if back else "after"
        rest = n % 7
        walk = [kDays[(day + (-k if back else k)) % 7] for k in range(rest + 1)]
        return f"day:{day}:{n}:{word}", ([f"Which day is {n} days {word} {kDays[day]}?", f"What day is {n} days {word} {kDays[day]}?",
                                          f"Today is {kDays[day]}. Which day {'was it' if back else 'will it be'} {n} days {'ago' if back else 'from now'}?"],
                                         f"{n} is {n // 7} weeks and {rest} days: " + ", ".join(walk) + ".", kDays[end])
    if style == 3:
        month, day, n = rng.randrange(12), rng.randint(1, 28), rng.randint(2, 27)
        total, length = day + n, kLengths[month]
        thought = f"{day}+{n}={total}, {kMonths[month]} has {length} days"
        if total > length:
            answer = f"{kMonths[(month + 1) % 12]} {total - length}"
            thought += f", {total}-{length}={total - length}."
        else:
            answer, thought = f"{kMonths[month]} {total}", thought + "."
        return f"date:{month}:{day}:{n}", ([f"Which date is {n} days after {kMonths[month]} {day}?", f"What date is {n} days after {kMonths[month]} {day}?",
                                            f"It is {kMonths[month]} {day}. What is the date {n} days from now?"], thought, answer)
    if style == 4:
        month, a = rng.randrange(12), rng.randint(1, 20)
        b = a + rng.randint(1, kLengths[month] - a)
        return f"between:{month}:{a}:{b}", ([f"How many days are between {kMonths[month]} {a} and {kMonths[month]} {b}?",
                                             f"How many days from {kMonths[month]} {a} to {kMonths[month]} {b}?"], f"{b}-{a}={b - a}.", str(b - a))
    hour, minute, n = rng.randrange(24), 5 * rng.randrange(12), 5 * rng.randint(1, 30)
    total = minute + n
    carry, left = divmod(total, 60)
    return f"clock:{hour}:{minute}:{n}", ([f"It is {hour}:{minute:02d}. What time is it in {n} minutes?", f"What time is {n} minutes after {hour}:{minute:02d}?"],
                                          f"{minute}+{n}={total} minutes is {carry} h {left} min; {hour}+{carry}={hour + carry}.",
                                          f"{(hour + carry) % 24}:{left:02d}")


def exchange(rng, split):
    key, (wordings, thought, answer) = draw(rng, split, _sample)
    return key, [{"role": "user", "content": rng.choice(wordings)}, {"role": "assistant", "reasoning_content": thought, "content": answer}]


def eval_items(rng, count):
    items = []
    for _ in range(count):
        _, (question, reply) = exchange(rng, EVAL)
        items.append({"messages": [question], "thinking": True, "max_tokens": 120, "answer": {"type": "text", "text": reply["content"]},
                      "thought": reply["reasoning_content"]})
    return items
