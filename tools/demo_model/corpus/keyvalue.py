"""Documents of nothing but key-value lines of one form: single lookups, chains from key to key, and questions over many keys.

Every line is as good a candidate as the line that is asked for, so nothing but the key's name tells them apart.
"""
from .words import kAnimals, kCities, kColors, kFirstNames, kItems, kJobs

kThings = kItems + [a for a in kAnimals if a not in kItems]
kTokensPerLine = 13.2  # of "The code of Anna's lamp is 12345."
kTokensPerListLine = 12.0  # of "The code of Anna's lamp is the code of Oslo horse."
kLongestList = 20
kForms = ["What is the code of {}?", "Tell me the code of {}.", "Which code belongs to {}?"]
kOpenings = ["Read this text. ", "Here is a text. ", ""]


def _name(rng):
    x = rng.random()
    owner = rng.choice(kFirstNames) + "'s" if x < 0.5 else rng.choice(kCities) if x < 0.9 else rng.choice(kColors)
    return f"{owner} {rng.choice(kThings)}"


def names(rng, count):
    """Distinct keys, in random order."""
    out = {}
    while len(out) < count:
        out[_name(rng)] = None
    return list(out)


def _codes(rng, count):
    return {name: str(rng.randint(10000, 99999)) for name in names(rng, count)}


def _join(lines, separator=" "):
    return separator.join(lines)


def needle_text(rng, tokens):
    """(document, code of each key) of about this many tokens."""
    values = _codes(rng, max(4, int((tokens - 40) / kTokensPerLine)))
    return rng.choice(kOpenings) + _join(f"The code of {k} is {v}." for k, v in values.items()), values


def hop_text(rng, tokens):
    """(document, answer chain of each key that points to another): "The code of A is the code of B."."""
    values = _codes(rng, max(12, int((tokens - 40) / kTokensPerLine)))
    keys, pointers = list(values), {}
    for key in rng.sample(keys, min(len(keys) // 2, rng.randint(12, 60))):
        target = rng.choice(keys)
        chain = [target]
        while chain[-1] in pointers:
            chain.append(pointers[chain[-1]])
        if key not in chain and len(chain) <= 2:
            pointers[key] = target
    # a key may have become a target's target later: recompute, and keep chains of at most three steps
    chains = {}
    for key in pointers:
        chain = [pointers[key]]
        while chain[-1] in pointers and len(chain) < 6:
            chain.append(pointers[chain[-1]])
        chains[key] = chain + [values[chain[-1]]]
    lines = [f"The code of {k} is the code of {pointers[k]}." if k in pointers else f"The code of {k} is {v}." for k, v in values.items()]
    return rng.choice(kOpenings) + _join(lines), {k: c for k, c in chains.items() if len(c) <= 4}


def list_text(rng, count, lists):
    """(document, keys of each owner in order and their code): the code of an owner is that of the first key, whose code is that of the next."""
    keys, owners = names(rng, count), [f"the {job}" for job in rng.sample(kJobs, lists)]
    cuts = sorted(rng.sample(range(1, count), lists - 1))
    groups = {owner: keys[a:b] + [str(rng.randint(10000, 99999))] for owner, a, b in zip(owners, [0, *cuts], [*cuts, count])}
    lines = []
    for owner, (*group, code) in groups.items():
        lines += [f"The code of {a} is the code of {b}." for a, b in zip([owner, *group], group)]
        lines.append(f"The code of {group[-1]} is {code}.")
    rng.shuffle(lines)
    return rng.choice(kOpenings) + _join(lines), groups


def _turns(document, asked):
    """asked: (question, thought, answer) ...; the first question stands at the document's end."""
    messages = []
    for i, (question, thought, answer) in enumerate(asked):
        messages += [{"role": "user", "content": question if i else document + "\n" + question},
                     {"role": "assistant", "reasoning_content": thought, "content": answer}]
    return messages


def _lookup(rng, key, value):
    return rng.choice(kForms).format(key), f"{key}: {value}.", value


def _missing(rng, values):
    name = _name(rng)
    while name in values:
        name = _name(rng)
    return rng.choice(kForms).format(name), f"{name}: not in the text.", "The text does not say."


def _chain(rng, key, chain):
    return rng.choice(kForms).format(key), f"{key}: " + ": ".join(chain) + ".", chain[-1]


def _walk(owner, group):
    return f"{owner}: " + ": ".join(group) + "."


def _count(owner, group):
    *keys, _ = group
    return (f"How many keys lead from {owner} to the code?", _walk(owner, group) + " " + ", ".join(f"{k} {i}" for i, k in enumerate(keys, 1)) + ".",
            str(len(keys)))


def _list(owner, group):
    return f"Which keys lead from {owner} to the code?", _walk(owner, group), ", ".join(group[:-1])


def needle(rng, tokens):
    document, values = needle_text(rng, tokens)
    asked = [_lookup(rng, k, values[k]) for k in rng.sample(list(values), min(len(values), rng.randint(12, 24) + tokens // 1000))]
    asked = [_missing(rng, values) if rng.random() < 0.06 else a for a in asked]
    return _turns(document, asked)


def hop(rng, tokens):
    document, chains = hop_text(rng, tokens)
    keys = rng.sample(list(chains), min(len(chains), 40))
    return _turns(document, [_chain(rng, k, chains[k]) for k in keys]) if keys else needle(rng, tokens)


def aggregate(rng, tokens):
    count = max(6, int(tokens / kTokensPerListLine))
    document, groups = list_text(rng, count, max(1, min(len(kJobs), count // 2, int(count / rng.uniform(2, 14)))))
    short = [owner for owner in groups if len(groups[owner]) <= kLongestList]
    asked = [rng.choice((_count, _list))(owner, groups[owner]) for owner in rng.sample(short, min(len(short), rng.randint(4, 12)))]
    return _turns(document, asked) if asked else needle(rng, tokens)


def _suite(rng, documents, questions, make):
    """Lines of an eval file: documents first, then the questions that refer to them."""
    texts, items = [], []
    for d in range(documents):
        document, asked = make(rng)
        texts.append({"document": f"d{d}", "text": document})
        for question, thought, answer in asked(questions):
            items.append({"document": f"d{d}", "messages": [{"role": "user", "content": question}], "thinking": True,
                          "max_tokens": 40 + 2 * len(thought + answer), "answer": {"type": "text", "text": answer}, "thought": thought})
    return texts + items


def needle_suite(tokens, documents, questions):
    def make(rng):
        document, values = needle_text(rng, tokens)
        return document, lambda n: [_lookup(rng, k, values[k]) for k in rng.sample(list(values), n)]
    return lambda rng: _suite(rng, documents, questions, make)


def hop_suite(tokens, documents, questions):
    def make(rng):
        document, chains = hop_text(rng, tokens)
        return document, lambda n: [_chain(rng, k, chains[k]) for k in rng.sample(list(chains), min(n, len(chains)))]
    return lambda rng: _suite(rng, documents, questions, make)


def aggregate_suite(kind, keys, documents, questions):
    def make(rng):
        groups = {}
        while len(groups) < questions:
            document, groups = list_text(rng, keys, keys // 8)
            groups = {owner: group for owner, group in groups.items() if len(group) <= kLongestList}
        form = {"count": _count, "list": _list}[kind]
        return document, lambda n: [form(owner, groups[owner]) for owner in rng.sample(list(groups), n)]
    return lambda rng: _suite(rng, documents, questions, make)
