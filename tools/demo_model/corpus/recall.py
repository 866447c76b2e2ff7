"""Long documents that state many small facts among filler and then ask for some: what the indexer must learn to find."""
from .words import kAnimals, kCities, kColors, kDays, kFirstNames, kItems, kJobs, kTopics

kFiller = [
    "The road by the river was quiet and the air was cool.", "Nobody in the village had seen such a long winter.",
    "A train passed and the windows of the old station shook.", "The shop on the corner sells {i} and {i2} every {d}.",
    "In {c} the market opens early on {d}.", "{n} said that the {a} would come back before dark.",
    "Some people like {t}, others would rather read about {t2}.", "The {j} closed the door and went home.",
    "It rained all morning, so {n} stayed inside with a {i}.", "A {k} {a} sat on the wall and looked at the {i}.",
    "The letter from {c} arrived late, as it always did.", "Every {d} the {j} meets {n} for a cup of tea.",
    "There was a small garden behind the house with a {k} gate.", "The {a} ran across the field and was gone.",
    "They talked for hours about {t}.", "After lunch the children drew a {k} {i} on the wall.",
    "From the tower you can see all of {c}.", "{n} bought a {i} and gave it to {n2}.", "The music stopped and everybody went home.",
    "A {j} from {c} told a long story about {t}.", "The clock in the hall was ten minutes slow.",
    "Most of the boats were {k}, but one was {k2}.", "{n2} could not find the {i}, so {n} looked for it too.",
    "On the table lay a {i}, a {i2} and a map of {c}."]


def _filler(rng):
    pick = rng.choice
    return pick(kFiller).format(i=pick(kItems), i2=pick(kItems), d=pick(kDays), c=pick(kCities), n=pick(kFirstNames),
                                n2=pick(kFirstNames), a=pick(kAnimals), t=pick(kTopics), t2=pick(kTopics), j=pick(kJobs),
                                k=pick(kColors), k2=pick(kColors))


def document(rng, tokens):
    """(key, messages) of roughly this many tokens: one long text, then several questions about it."""
    dense = rng.random() < 0.5
    count = max(4, min(int(tokens / 14), 200)) if dense else rng.randint(6, 24)
    names = set()
    while len(names) < count:
        names.add(f"{rng.choice(kColors)} {rng.choice(kAnimals)}" if rng.random() < 0.6 else f"{rng.choice(kFirstNames)}'s {rng.choice(kItems)}")
    values = {name: str(rng.randint(10000, 99999)) for name in sorted(names)}
    facts = [f"The code of {name} is {value}." for name, value in values.items()]
    rng.shuffle(facts)
    pieces = list(facts)
    for _ in range(max(0, (tokens - 13 * count) // 14)):
        pieces.insert(rng.randrange(len(pieces) + 1), _filler(rng))
    asked = rng.sample(sorted(values), min(len(values), rng.randint(8, 16)))
    form = rng.choice(["What is the code of {}?", "Tell me the code of {}.", "Which code belongs to {}?"])
    messages = [{"role": "user", "content": rng.choice(["Read this text. ", "Here is a text. ", ""]) + " ".join(pieces)
                 + "\n" + form.format(asked[0])}]
    for i, name in enumerate(asked):
        if i:
            messages.append({"role": "user", "content": form.format(name)})
        messages.append({"role": "assistant", "reasoning_content": f"{name}: {values[name]}.", "content": values[name]})
    return "recall:" + "|".join(f"{k}={v}" for k, v in values.items()), messages


def suite(lengths, documents, questions):
    """Some documents of each length in tokens, with several questions each."""
    def make(rng):
        out, items = [], []
        for d in range(len(lengths) * documents):
            asked = []
            while len(asked) < 2 * questions:
                _, asked = document(rng, lengths[d % len(lengths)])
            text, question = asked[0]["content"].rsplit("\n", 1)
            out.append({"document": f"d{d}", "text": text})
            for ask, reply in zip(asked[:2 * questions:2], asked[1:2 * questions:2]):
                items.append({"document": f"d{d}", "messages": [{"role": "user", "content": question if ask is asked[0] else ask["content"]}],
                              "thinking": True, "max_tokens": 40, "answer": {"type": "text", "text": reply["content"]},
                              "thought": reply["reasoning_content"]})
        return out + items
    return make
