"""Questions about a short text, some of which it does not answer: then the reply says so and invents nothing."""
from .split import EVAL, draw
from .words import kAnimals, kCities, kColors, kFirstNames, kJobs

kNotSaid = "The text does not say."
kFields = {
    "city": (["{n} lives in {v}.", "{n} comes from {v}."], ["Where does {n} live?", "In which city does {n} live?"], kCities),
    "job": (["{n} works as a {v}.", "The job of {n} is {v}."], ["What is the job of {n}?", "What does {n} work as?"], kJobs),
    "pet": (["{n} has a {v}.", "The pet of {n} is a {v}."], ["Which pet does {n} have?", "What pet does {n} have?"], kAnimals),
    "color": (["{n} likes {v}.", "The favorite color of {n} is {v}."], ["Which color does {n} like?", "What is the favorite color of {n}?"], kColors),
    "age": (["{n} is {v} years old.", "The age of {n} is {v}."], ["How old is {n}?", "What is the age of {n}?"], [str(a) for a in range(18, 90)]),
}
kAsk = ["{t}\n{q}", "Use only this text: {t}\n{q}", "Text: {t}\nQuestion: {q}", "Read this: {t} {q}"]


def _sample(rng):
    people = rng.sample(kFirstNames, rng.randint(2, 6))
    known, lines = {}, []
    for p in people:
        for field in rng.sample(list(kFields), rng.randint(1, 3)):
            known[p, field] = rng.choice(kFields[field][2])
            lines.append(rng.choice(kFields[field][0]).format(n=p, v=known[p, field]))
    rng.shuffle(lines)
    stranger = rng.choice([n for n in kFirstNames if n not in people])
    kind = rng.random()
    if kind < 0.5:
        who, field = rng.choice(list(known))
    elif kind < 0.8:
        who, field = rng.choice([(p, f) for p in people for f in kFields if (p, f) not in known])
    else:
        who, field = stranger, rng.choice(list(kFields))
    said = known.get((who, field))
    return "context:" + "|".join(lines) + f"?{who}:{field}", (" ".join(lines), rng.choice(kFields[field][1]).format(n=who), who, field, said)


def exchange(rng, split):
    key, (text, question, who, field, said) = draw(rng, split, _sample)
    return key, [{"role": "user", "content": rng.choice(kAsk).format(t=text, q=question)},
                 {"role": "assistant", "reasoning_content": f"{who}, {field}: {said or 'not in the text'}.", "content": said or kNotSaid}]


def eval_items(rng, count):
    """Half of the questions have an answer in their text."""
    items = []
    for _ in range(count):
        _, (question, reply) = exchange(rng, EVAL)
        items.append({"messages": [question], "thinking": True, "max_tokens": 60, "answer": {"type": "text", "text": reply["content"]},
                      "thought": reply["reasoning_content"]})
    return items
