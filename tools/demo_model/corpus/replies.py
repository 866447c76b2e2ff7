"""What tools answer in words of their own: places, skies, amounts and errors from an open vocabulary, so that they have to be copied.

The requests have the keys of toolcalls.py and are held out as those are; the answers keep its forms.
"""
import json

from . import split, toolcalls
from .arith import key_of
from .words import kAnimals, kCities, kColors, kCurrencies, kItems, kOtherTopics, kTopics, made_up_name

kKinds_of_sky = """rain snow fog mist hail sleet drizzle showers clouds wind dust smoke haze ice frost thunder lightning sunshine storms gusts
rainfall snowfall thunderstorms""".split()
kHow = "light heavy some patchy freezing scattered strong thick thin cold warm wet dry early late".split()
kOtherSkies = ["overcast", "clear sky", "partly cloudy", "mostly sunny", "mostly cloudy", "partly sunny", "bright", "grey", "hot", "humid", "misty",
               "hazy", "dusty", "icy", "calm", "mild", "wet", "dry", "fair", "clouds and sun", "rain and snow", "blizzard", "gale", "breezy"]
kTitles = ["New {}", "Port {}", "Saint {}", "{} Bay", "{} Falls", "Mount {}", "{} on Sea", "North {}", "South {}", "Old {}", "{} City"]
kErrors = ["not found", "no such place", "unknown city", "no data", "bad request", "404", "500", "out of range", "invalid argument", "not supported",
           "unknown", "no answer", "access denied", "the server is down", "only whole numbers are known", "division by zero", "too many requests",
           "quota exceeded", "connection refused", "no route", "service unavailable", "cannot read that", "missing key", "nothing found"]
kRetry = ["error: timeout, try again", "error: busy, try again", "error: please try again", "error: network down, try again",
          "error: too many requests, try again", "error: 503, try again"]
kDone = ["ok", "done", "set", "true", '{"status":"ok"}', '{"ok":true}', "success", "saved", "accepted"]
# The requests of examples/agent.py, which no conversation of this kind holds.
kShown = {*(f"calc:{e}" for e in ("37507 - 53698", "58328 - 21845", "812 + 9377", "4410 + 35212", "70011 - 8", "123 + 456", "5121 + 77", "900 - 1",
                                  "31 + 31", "58 - 50")),
          *(f"weather:{city}:None" for city in ("Krakow", "Oslo", "Lisbon", "Tokyo", "Atlantis")),
          *(f"search:{q}" for q in ("books about coral reefs", "a guide to electric cars", "news about bird migration", "books about bird migration")),
          *(f"currency:{q}" for q in ("100:EUR:USD", "587:EUR:JPY", "50:GBP:EUR", "10:USD:EUR")), "light:bathroom:off"}
kNames = {"+": "add", "-": "sub", "*": "mul"}


def _word(rng):
    return made_up_name(rng).lower()


def _place(rng):
    x = rng.random()
    if x < 0.5:
        return rng.choice(kCities)
    if x < 0.85:
        return made_up_name(rng)
    return rng.choice(kTitles).format(rng.choice((made_up_name(rng), rng.choice(kAnimals).capitalize(), rng.choice(kCities))))


def _sky(rng):
    x = rng.random()
    if x < 0.1:
        return rng.choice(toolcalls.kSkies)
    if x < 0.45:
        return rng.choice(kKinds_of_sky)
    if x < 0.65:
        return f"{rng.choice(kHow)} {rng.choice(kKinds_of_sky)}"
    if x < 0.85:
        return rng.choice(kOtherSkies)
    return rng.choice((_word(rng), rng.choice(kAnimals), rng.choice(kColors), rng.choice(kItems)))


def _query(rng):
    topic = rng.choice((rng.choice(kTopics), rng.choice(kOtherTopics), made_up_name(rng), f"{rng.choice(kColors)} {rng.choice(kItems)}s"))
    return rng.choice([*toolcalls.kQualifiers, "{t} for beginners", "photos of {t}", "news on {t}", "the best {t}"]).format(t=topic)


def _number(rng, digits):
    return rng.randint(1, 10 ** rng.choice(digits) - 1)


def _sum(rng):
    """An expression, none that a suite asks."""
    while True:
        op = rng.choice("+-+-*/")
        a, b = (_number(rng, (2, 3, 4)), rng.randint(2, 99)) if op in "*/" else (_number(rng, (1, 2, 3, 4, 5, 5)), _number(rng, (1, 2, 3, 4, 5, 5)))
        if op == "/" or not split.is_held_out(key_of(kNames[op], a, b)):
            return f"{a} {op} {b}", f"{a / b:.6g}" if op == "/" else str({"+": a + b, "-": a - b, "*": a * b}[op])


def _money(rng, amount):
    value = amount * 10 ** rng.uniform(-2.3, 2.4)
    return rng.choice(("{:.2f}", "{:.2f}", "{:.0f}.00", "{:.1f}0", "{:.0f}")).format(value)


def _request(rng, kind):
    if kind == "calculator":
        e, result = _sum(rng)
        phrase = rng.choice(["compute {e}", "work out {e}", "calculate {e}", "find {e}", "evaluate {e}"]).format(e=e)
        return f"calc:{e}", phrase, [e], e, result, f"{e} = {result}"
    if kind == "weather":
        city, days = _place(rng), rng.randint(2, 9) if rng.random() < 0.15 else None
        phrase = rng.choice(["check the weather in {c}", "tell me the weather in {c}", "look up the weather in {c}", "get the weather in {c}",
                             "find the weather in {c}", "show me the weather in {c}"]).format(c=city)
        if days:
            phrase += rng.choice([" for {d} days", " for the next {d} days"]).format(d=days)
        temperature, sky = rng.randint(-40, 55), _sky(rng)
        result = rng.choice(["{t}C, {s}", "{s}, {t}C", "{s}, {t}C", "{s} {t}C", "{t}C and {s}", "{s} at {t}C", "sky: {s}, temperature: {t}",
                             '{{"sky":"{s}","temperature":{t}}}', '{{"temperature":{t},"sky":"{s}"}}']).format(t=temperature, s=sky)
        return f"weather:{city}:{days}", phrase, [city, days], f"weather in {city}", result, f"It is {temperature}C and {sky} in {city}"
    if kind == "search":
        query = _query(rng)
        phrase = rng.choice(["search for {q}", "search the web for {q}", "find {q}"]).format(q=query)
        count = rng.randint(0, 9) if rng.random() < 0.5 else _number(rng, (2, 3, 4, 5))
        result = rng.choice(["{n} pages found.", "{n} pages found.", "{n} pages", "found {n}", '{{"pages":{n}}}', "{n} results"]).format(n=count)
        return f"search:{query}", phrase, [query], query, result, f"I found {count} pages about {query}"
    if kind == "time":
        city, clock = _place(rng), f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"
        phrase = rng.choice(["tell me the time in {c}", "check what time it is in {c}", "give me the local time in {c}", "get the time in {c}"]).format(c=city)
        result = rng.choice(["{t}", "{t}", '{{"time":"{t}"}}', "{t} local time", "the time is {t}"]).format(t=clock)
        return f"time:{city}", phrase, [city], f"time in {city}", result, f"It is {clock} in {city}"
    if kind == "currency":
        codes = ["".join(rng.choice(toolcalls.kLetters) for _ in range(3)) for _ in range(2)]
        a, b = rng.sample([*kCurrencies, *codes], 2)
        amount = _number(rng, (1, 2, 3, 3, 4, 5))
        phrase = rng.choice(["convert {n} {a} to {b}", "change {n} {a} into {b}", "exchange {n} {a} for {b}"]).format(n=amount, a=a, b=b)
        value = _money(rng, amount)
        result = rng.choice(["{v}", "{v}", "{v}", '{{"amount":{v}}}', "{v} {b}"]).format(v=value, b=b)
        return f"currency:{amount}:{a}:{b}", phrase, [amount, a, b], f"{amount} {a} to {b}", result, f"{amount} {a} is {value} {b}"
    if kind == "stock":
        symbol = "".join(rng.choice(toolcalls.kLetters) for _ in range(rng.randint(2, 4)))
        price = _money(rng, rng.randint(1, 900))
        phrase = rng.choice(["get the stock price of {s}", "tell me the price of {s} shares", "look up {s} stock"]).format(s=symbol)
        return f"stock:{symbol}", phrase, [symbol], f"stock price of {symbol}", rng.choice(["{}", '{{"price":{}}}']).format(price), f"{symbol} stands at {price}"
    key, phrase, values, short, _, answer = toolcalls._request(rng, kind)
    return key, phrase, values, short, rng.choice(kDone), answer


def request(rng, kind):
    """As toolcalls._request, with an open vocabulary."""
    while True:
        made = _request(rng, kind)
        if made[0] not in kShown:
            return made


def error(rng, call):
    """What a tool that failed says: some fixed text, or the argument that it did not like."""
    value = str(rng.choice(list(json.loads(call["function"]["arguments"]).values())))
    return "error: " + rng.choice((rng.choice(kErrors), rng.choice(("'{}'", "'{}'", "no {}", "{} is unknown", "unknown: {}", "not found: {}", "'{}' is not supported",
                                                                    "cannot read '{}'")).format(value)))

