"""Registers that are overwritten hundreds of times: the place where somebody is, and a running count of somebody's points.

Attention without positions finds every line about a person but not the last one; a recurrent state keeps just that. Every line
also says what it overwrites (the place that is left, a count one off the last), so a document asks for the state at each of its lines.
"""
import math

from .words import kCities, kFirstNames

kTokensPerLine = 8.0  # of "Anna goes from Oslo to Paris."
kGap, kLeast = 16, 8  # of a suite's question: lines since the last one that it hangs on, and lines about its person
kKnown = r" goes from( \w+)| and has (\d+)"  # what a line holds that the lines before it tell
kMost = 99  # points


class Places:
    """"Where is Anna now?" """

    def __init__(self, rng):
        self.rng, self.places = rng, rng.sample(kCities, rng.randint(6, 16))

    def first(self, person):
        place = self.rng.choice(self.places)
        return f"{person} is in {place}.", place

    def next(self, person, old):
        place = self.rng.choice([c for c in self.places if c != old])
        return f"{person} goes from {old} to {place}.", place

    @staticmethod
    def question(person, value):
        return f"Where is {person} now?", f"{person}: {value}.", value


class Points:
    """"How many points does Anna have?" """

    def __init__(self, rng):
        self.rng = rng

    def first(self, person):
        count = self.rng.randint(0, kMost)
        return f"{person} starts with {count}.", count

    def next(self, person, old):
        up = old == 0 or (old < kMost and self.rng.random() < 0.5)
        new = old + 1 if up else old - 1
        return f"{person} {'wins' if up else 'loses'} and has {new}.", new

    @staticmethod
    def question(person, value):
        return f"How many points does {person} have?", f"{person}: {value}.", str(value)


def text(rng, kind, people, lines, gap=0, least=1):
    """(document, (question, thought, answer) ... about who has `least` lines, none among the last `gap`)"""
    people, register = rng.sample(kFirstNames, people), kind(rng)
    out, value, last, number = [], {}, {}, dict.fromkeys(people, 1)
    for person in people:
        line, value[person] = register.first(person)
        last[person] = len(out)
        out.append(line)
    # Only some people act at a time, so that anybody's last line can lie near or far back.
    while len(out) < lines + len(people):
        length = int(math.exp(rng.uniform(0, math.log(max(2, lines // 3)))))
        active = rng.sample(people, rng.randint(1, max(1, (len(people) + 1) // 2)))
        for _ in range(min(length, lines + len(people) - len(out))):
            person = rng.choice(active)
            line, value[person] = register.next(person, value[person])
            last[person] = len(out)
            number[person] += 1
            out.append(line)
    asked = [register.question(p, value[p]) for p in people if last[p] < len(out) - gap and number[p] >= least]
    rng.shuffle(asked)
    return " ".join(out), asked


def messages(rng, kind, tokens):
    lines = max(4, int(tokens / kTokensPerLine))
    document, asked = text(rng, kind, rng.randint(2, 10), lines)
    out = []
    for i, (question, thought, answer) in enumerate(asked):
        out += [{"role": "user", "content": question if i else document + "\n" + question},
                {"role": "assistant", "reasoning_content": thought, "content": answer}]
    return out


def suite(kind, documents, questions):
    """Eight people, 240 to 300 lines."""
    def make(rng):
        out, items = [], []
        for d in range(documents):
            asked = []
            while len(asked) < questions:
                document, asked = text(rng, kind, 8, rng.randint(240, 300), kGap, kLeast)
            out.append({"document": f"d{d}", "text": document})
            items += [{"document": f"d{d}", "messages": [{"role": "user", "content": q}], "thinking": True, "max_tokens": 60,
                       "answer": {"type": "text", "text": a}, "thought": t} for q, t, a in asked[:questions]]
        return out + items
    return make
