"""People who move between places, hundreds of times: only the order of events tells where anybody is now.

Attention without positions can find every line about a person but not the last one; a recurrent state keeps just that. Every
line also names the place that is left, so a document asks for the state at each of its lines.
"""
from .words import kCities, kFirstNames

kTokensPerLine = 8.0  # of "Anna goes from Oslo to Paris."
kGap = 130  # events after the last one that a suite's question depends on: more than the 128 keys that attention reads


def text(rng, events, gap=0):
    """(document, (question, thought, answer) ... that hang on no event among the last `gap`)"""
    people, places = rng.sample(kFirstNames, rng.randint(2, 6)), rng.sample(kCities, rng.randint(4, 8))
    where = {p: rng.choice(places) for p in people}
    lines, last = [], {}
    # Only some people move at a time, so that somebody's last move can lie far back.
    while len(lines) < events:
        active = rng.sample(people, rng.randint(1, max(1, len(people) - 1)))
        for _ in range(min(events - len(lines), rng.randint(1 + events // 12, 1 + events // 2))):
            person = rng.choice(active)
            place = rng.choice([c for c in places if c != where[person]])
            lines.append(f"{person} goes from {where[person]} to {place}.")
            where[person], last[person] = place, len(lines) - 1
    asked = [(f"Where is {p} now?", f"{p}: {where[p]}.", where[p]) for p in last if last[p] < events - gap]
    rng.shuffle(asked)
    return " ".join(lines), asked


def messages(rng, tokens):
    document, asked = text(rng, max(6, int(tokens ** rng.uniform(0.5, 1) / kTokensPerLine)))
    out = []
    for i, (question, thought, answer) in enumerate(asked):
        out += [{"role": "user", "content": question if i else document + "\n" + question},
                {"role": "assistant", "reasoning_content": thought, "content": answer}]
    return out


def suite(documents, questions):
    def make(rng):
        out, items = [], []
        for d in range(documents):
            asked = []
            while len(asked) < questions:
                document, asked = text(rng, rng.randint(250, 420), kGap)
            out.append({"document": f"d{d}", "text": document})
            items += [{"document": f"d{d}", "messages": [{"role": "user", "content": q}], "thinking": True, "max_tokens": 60,
                       "answer": {"type": "text", "text": a}, "thought": t} for q, t, a in asked[:questions]]
        return out + items
    return make
