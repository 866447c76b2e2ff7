"""People who move between places, hundreds of times: only the order of events tells where anybody is now.

Attention without positions can find every line about a person but not the last one; a recurrent state keeps just that.
"""
from .words import kCities, kFirstNames

kTokensPerLine = 6.0  # of "Anna goes to Paris."
kGap = 130  # events after the last one that a suite's question depends on: more than the 128 keys that attention reads


def text(rng, events, gap=0):
    """(document, (question, thought, answer) ... that hang on no event among the last `gap`)"""
    people, places = rng.sample(kFirstNames, rng.randint(5, 10)), rng.sample(kCities, rng.randint(6, 12))
    # People stop moving, and places stop being visited, at random moments, so that last events lie anywhere.
    person_until = {p: rng.randint(events // 8, events) for p in people[2:]}
    place_until = {c: rng.randint(events // 8, events) for c in places[2:]}
    lines, where, last_visitor, at = [], {}, {}, {}
    for e in range(events):
        person = rng.choice([p for p in people if person_until.get(p, events) > e])
        options = [c for c in places if place_until.get(c, events) > e and where.get(person) != c]
        place = rng.choice(options)
        lines.append(f"{person} goes to {place}.")
        where[person], last_visitor[place] = place, person
        at[person] = at[place] = e
    asked = [(f"Where is {p} now?", f"{p}: {c}.", c) for p, c in where.items() if at[p] < events - gap]
    asked += [(f"Who went to {c} last?", f"{c}: {p}.", p) for c, p in last_visitor.items() if at[c] < events - gap]
    rng.shuffle(asked)
    return " ".join(lines), asked


def messages(rng, tokens):
    document, asked = text(rng, max(12, int(tokens / kTokensPerLine)))
    out = []
    for i, (question, thought, answer) in enumerate(asked[:16]):
        out += [{"role": "user", "content": question if i else document + "\n" + question},
                {"role": "assistant", "reasoning_content": thought, "content": answer}]
    return out


def suite(documents, questions):
    def make(rng):
        out, items = [], []
        for d in range(documents):
            document, asked = text(rng, rng.randint(250, 420), kGap)
            while len(asked) < questions:
                document, asked = text(rng, rng.randint(250, 420), kGap)
            out.append({"document": f"d{d}", "text": document})
            items += [{"document": f"d{d}", "messages": [{"role": "user", "content": q}], "thinking": True, "max_tokens": 60,
                       "answer": {"type": "text", "text": a}, "thought": t} for q, t, a in asked[:questions]]
        return out + items
    return make
