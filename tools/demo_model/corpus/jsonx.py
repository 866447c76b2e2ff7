"""Extraction: a sentence in, the fields that were asked for out, as one JSON object in the order of the question."""
import json

from .split import EVAL, draw
from .words import kCities, kColors, kCurrencies, kDays, kEvents, kFirstNames, kItems, kJobs, kLastNames, kMonths

kAsk = ["Extract {keys} as JSON: {s}", "Extract the fields {keys} as JSON from this sentence: {s}",
        "Return a JSON object with {keys}: {s}", "{s} Give me {keys} as JSON.", "Read this and return {keys} in JSON: {s}",
        "From the text below, extract {keys} as JSON.\n{s}", "Text: {s}\nReturn JSON with the keys {keys}."]


def _person(rng):
    v = {"name": rng.choice(kFirstNames) + (" " + rng.choice(kLastNames) if rng.random() < 0.5 else ""),
         "age": rng.randint(18, 89), "city": rng.choice(kCities), "job": rng.choice(kJobs)}
    a = "an" if v["job"][0] in "aeiou" else "a"
    return v, rng.choice([
        "{name} is {age} years old, lives in {city} and works as " + a + " {job}.",
        "{name}, {age}, is " + a + " {job} from {city}.",
        "In {city} there is " + a + " {job} called {name}, who is {age}.",
        "My neighbour {name} is {age} and works as " + a + " {job} in {city}.",
        "At the age of {age}, {name} moved to {city} to become " + a + " {job}."])


def _order(rng):
    v = {"customer": rng.choice(kFirstNames), "item": rng.choice(kItems), "quantity": rng.randint(2, 60),
         "price": rng.randint(3, 999), "currency": rng.choice(kCurrencies)}
    return v, rng.choice([
        "{customer} ordered {quantity} units of {item} for {price} {currency}.",
        "An order from {customer}: {quantity} x {item}, total {price} {currency}.",
        "We sold {quantity} pieces of {item} to {customer} at {price} {currency}.",
        "{customer} paid {price} {currency} for {quantity} boxes of {item}."])


def _event(rng):
    v = {"event": rng.choice(kEvents), "day": rng.choice(kDays), "time": f"{rng.randint(7, 21)}:{rng.choice(('00', '15', '30', '45'))}",
         "place": rng.choice(kCities), "guests": rng.randint(4, 300)}
    return v, rng.choice([
        "The {event} takes place on {day} at {time} in {place} with {guests} guests.",
        "On {day} at {time}, {guests} guests will come to the {event} in {place}.",
        "We expect {guests} guests in {place} for the {event} on {day} at {time}.",
        "{day}, {time}: {event} in {place}, {guests} guests."])


def _trip(rng):
    start, end = rng.sample(kCities, 2)
    v = {"from": start, "to": end, "month": rng.choice(kMonths), "day": rng.randint(1, 28), "passengers": rng.randint(1, 9)}
    return v, rng.choice([
        "Please book {passengers} seats from {from} to {to} on {month} {day}.",
        "A flight from {from} to {to} on {day} {month} for {passengers} passengers.",
        "{passengers} of us travel on {month} {day}, leaving {from} for {to}.",
        "We go to {to} from {from} on {day} {month}, {passengers} people in all."])


def _product(rng):
    v = {"product": rng.choice(kItems), "color": rng.choice(kColors), "stock": rng.randint(0, 500),
         "available": rng.random() < 0.5, "brand": rng.choice(kLastNames)}
    state = "available" if v["available"] else "not available"
    return v, rng.choice([
        "The {color} {product} by {brand} is " + state + ", stock {stock}.",
        "{brand} makes a {color} {product}; it is " + state + " and the stock is {stock}.",
        "Stock {stock}: {color} {product} from {brand}, " + state + " now."])


kKinds = (_person, _order, _event, _trip, _product)


def _sample(rng):
    values, sentence = rng.choice(kKinds)(rng)
    return "json:" + "|".join(f"{k}={values[k]}" for k in sorted(values)), (values, sentence)


def _ask(rng, keys):
    style = rng.random()
    if style < 0.6:
        return ", ".join(keys[:-1]) + (" and " if len(keys) > 1 else "") + keys[-1]
    if style < 0.8:
        return ", ".join(keys)
    return ", ".join(f'"{k}"' for k in keys)


def _people(rng):
    """Several people in one sentence: a JSON array."""
    names = rng.sample(kFirstNames, rng.randint(2, 3))
    field = rng.choice(("age", "city", "job"))
    draw_one = {"age": lambda: rng.randint(18, 89), "city": lambda: rng.choice(kCities), "job": lambda: rng.choice(kJobs)}[field]
    people = [{"name": name, field: draw_one()} for name in names]
    form = {"age": rng.choice(["{name} is {age}", "{name} is {age} years old"]),
            "city": rng.choice(["{name} lives in {city}", "{name} comes from {city}"]),
            "job": rng.choice(["{name} works as {a} {job}", "the job of {name} is {job}"])}[field]
    parts = [form.format(**p, a="an" if str(p[field])[0] in "aeiou" else "a") for p in people]
    sentence = ", ".join(parts[:-1]) + " and " + parts[-1] + "."
    return "json:people:" + "|".join(f"{p['name']}={p[field]}" for p in people), (people, sentence[0].upper() + sentence[1:], field)


def _array_exchange(rng, split):
    key, (people, sentence, field) = draw(rng, split, _people)
    question = rng.choice(["Extract name and {f} of every person as a JSON array: {s}", "{s} Return a JSON array with name and {f}.",
                           "List all people with name and {f} as a JSON array: {s}"]).format(f=field, s=sentence)
    thought = "; ".join(f"{p['name']} has {field} {p[field]}" for p in people) + "."
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": thought, "content": json.dumps(people)}]


def exchange(rng, split):
    if rng.random() < 0.12:
        return _array_exchange(rng, split)
    key, (values, sentence) = draw(rng, split, _sample)
    keys = rng.sample(list(values), rng.randint(1 if rng.random() < 0.15 else 2, len(values)))
    wanted = {k: values[k] for k in keys}
    question = rng.choice(kAsk).format(keys=_ask(rng, keys), s=sentence.format(**values))
    thought = "; ".join(f"{k} is {json.dumps(v) if isinstance(v, bool) else v}" for k, v in wanted.items()) + "."
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": thought, "content": json.dumps(wanted)}]


def eval_items(rng, count):
    items = []
    for _ in range(count):
        _, (question, reply) = exchange(rng, EVAL)
        items.append({"messages": [question], "thinking": True, "max_tokens": 200,
                      "answer": {"type": "json", "value": json.loads(reply["content"])},
                      "thought": reply["reasoning_content"]})
    return items
