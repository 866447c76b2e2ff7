"""Tool use: one call, several calls at once, an answer from results, and questions that no declared tool fits.

Names of tools and of their arguments vary from document to document, so the declaration has to be read.
"""
import json

from . import chat
from .split import EVAL, draw
from .words import kCities, kCurrencies, kDays, kFirstNames, kTopics, join_and

kSkies = ["sunny", "cloudy", "rainy", "windy", "foggy", "snowy", "stormy", "clear"]


# kind -> (names, descriptions, arguments: (names, type, descriptions, required))
kCatalogue = {
    "calculator": (["calculator", "calculate", "calc", "evaluate", "math"],
                   ["Evaluate an arithmetic expression.", "Compute the value of an expression.", "A calculator.", "Do exact arithmetic."],
                   [(["expression", "expr", "input"], "string", ["The expression, e.g. 3 * 7", "What to compute", "Arithmetic expression"], True)]),
    "weather": (["get_weather", "weather", "weather_lookup", "get_current_weather", "get_forecast", "weather_forecast"],
                ["Get the weather in a city.", "Look up the weather.", "Weather for a place.", "Get the current weather in a given location",
                 "Get current temperature for a given location.", "Returns the weather forecast."],
                [(["city", "location", "place", "town"], "string", ["The city", "Name of the city", "City and country e.g. Bogota, Colombia",
                                                                    "The city and state, e.g. San Francisco, CA", "Where"], True),
                 (["days", "num_days"], "number", ["Number of days", "How many days ahead"], False)]),
    "search": (["search", "web_search", "search_web", "find_pages", "search_internet"],
               ["Search the web.", "Find pages about a topic.", "Search the internet for information."],
               [(["query", "q", "topic"], "string", ["The search query", "What to look for"], True)]),
    "time": (["get_time", "current_time", "get_local_time", "clock"],
             ["Get the local time in a city.", "Current time somewhere.", "Returns the time in a city."],
             [(["city", "location", "place"], "string", ["The city", "Name of the city", "Where"], True)]),
    "currency": (["convert_currency", "exchange", "currency_converter"], ["Convert an amount of money.", "Currency conversion."],
                 [(["amount", "value"], "number", ["How much", "The amount of money"], True),
                  (["from", "source"], "string", ["Currency code", "Currency to convert from"], True),
                  (["to", "target"], "string", ["Currency code", "Currency to convert to"], True)]),
    "timer": (["set_timer", "start_timer", "timer"], ["Start a timer.", "Set a countdown."],
              [(["minutes", "duration"], "number", ["Length in minutes", "How long"], True)]),
    "reminder": (["create_reminder", "remind_me", "add_reminder"], ["Create a reminder.", "Remind the user of something."],
                 [(["text", "note", "task"], "string", ["What to remember", "The task"], True),
                  (["day", "when"], "string", ["Day of the week", "When"], True)]),
    "message": (["send_message", "send_text", "message"], ["Send a message to a person.", "Text somebody."],
                [(["to", "recipient"], "string", ["Name of the person", "Who gets it"], True),
                 (["text", "body"], "string", ["The message", "What to say"], True)]),
    "stock": (["get_stock_price", "stock_price", "quote"], ["Get the price of a stock.", "Current stock quote."],
              [(["symbol", "ticker"], "string", ["Ticker symbol", "Symbol, e.g. ABC"], True)]),
    "light": (["set_light", "switch_light", "light"], ["Switch a light on or off.", "Control the lights of a room."],
              [(["room", "where"], "string", ["Name of the room", "Which room"], True),
               (["on", "state"], "boolean", ["true switches it on", "On or off"], True)]),
}


def _declare(rng, kind):
    """A declaration of this kind with names of its own: (tool, name, argument names)."""
    names, descriptions, arguments = kCatalogue[kind]
    name, described = rng.choice(names), rng.random() < 0.5
    chosen, properties, required = [], {}, []
    for options, type_name, texts, needed in arguments:
        argument = rng.choice(options)
        chosen.append(argument)
        if not needed and rng.random() < 0.4:
            continue
        properties[argument] = {"type": type_name} | ({"description": rng.choice(texts)} if described else {})
        required += [argument] if needed else []
    if kind == "weather" and rng.random() < 0.2:
        properties["unit"] = {"type": "string", "enum": ["celsius", "fahrenheit"]}
    parameters = {"type": "object", "properties": properties, "required": required}
    if rng.random() < 0.25:
        parameters["additionalProperties"] = False
    function = {"name": name, "description": rng.choice(descriptions), "parameters": parameters}
    if rng.random() < 0.1:
        function["strict"] = True
    return {"type": "function", "function": function}, name, chosen


kKinds = tuple(kCatalogue)
kChores = ["call the bank", "buy milk", "water the plants", "pay the rent", "send the report", "visit the dentist", "feed the cat",
           "book the train", "clean the kitchen", "return the books", "wash the car", "call Anna", "fix the lamp", "write to Peter"]
kRooms = ["kitchen", "bedroom", "bathroom", "garden", "office", "garage", "hall", "cellar"]
kNotes = ["I am late", "dinner is ready", "see you soon", "happy birthday", "the train left", "call me back", "I am at home",
          "the meeting moved", "thank you", "bring some milk", "good luck", "I found the keys"]
kLetters = "ABCDEFGHIKLMNOPRSTUVWXZ"
kQualifiers = ["{t}", "{t}", "the history of {t}", "news about {t}", "books about {t}", "a guide to {t}", "pictures of {t}"]


def _request(rng, kind):
    """(key, phrase that follows "Please", values, short description, result, answer)"""
    if kind == "calculator":
        op = rng.choice("+-*/")
        a, b = rng.randint(1000, 99999), rng.randint(1000, 99999)
        if op in "*/":
            a, b = rng.randint(100, 9999), rng.randint(11, 99)
        e = f"{a} {op} {b}"
        result = f"{eval(e):.6g}" if op == "/" else str(eval(e))  # two integers and an operator, all made here
        return f"calc:{e}", rng.choice(["compute {e}", "work out {e}", "calculate {e}"]).format(e=e), [e], e, result, f"{e} = {result}"
    if kind == "weather":
        city, days = rng.choice(kCities), rng.randint(2, 9) if rng.random() < 0.3 else None
        phrase = rng.choice(["check the weather in {c}", "tell me the weather in {c}", "look up the weather in {c}"]).format(c=city)
        temp, sky = rng.randint(-9, 38), rng.choice(kSkies)
        if days:
            phrase += rng.choice([" for {d} days", " for the next {d} days"]).format(d=days)
        result = rng.choice(["{t}C, {s}", "{s}, {t}C", '{{"sky":"{s}","temperature":{t}}}']).format(t=temp, s=sky)
        return f"weather:{city}:{days}", phrase, [city, days], f"weather in {city}", result, f"It is {temp}C and {sky} in {city}"
    if kind == "search":
        query = rng.choice(kQualifiers).format(t=rng.choice(kTopics))
        phrase = rng.choice(["search for {q}", "search the web for {q}", "find {q}"]).format(q=query)
        count = rng.randint(2, 900)
        return f"search:{query}", phrase, [query], query, f"{count} pages found.", f"I found {count} pages about {query}"
    if kind == "time":
        city = rng.choice(kCities)
        clock = f"{rng.randint(0, 23)}:{rng.randint(0, 59):02d}"
        phrase = rng.choice(["tell me the time in {c}", "check what time it is in {c}", "give me the local time in {c}"]).format(c=city)
        return f"time:{city}", phrase, [city], f"time in {city}", clock, f"It is {clock} in {city}"
    if kind == "currency":
        amount, (a, b) = rng.randint(5, 9999), rng.sample(kCurrencies, 2)
        phrase = rng.choice(["convert {n} {a} to {b}", "change {n} {a} into {b}"]).format(n=amount, a=a, b=b)
        result = f"{rng.randint(5, 9999)}.{rng.randint(0, 99):02d}"
        return f"currency:{amount}:{a}:{b}", phrase, [amount, a, b], f"{amount} {a} to {b}", result, f"{amount} {a} is {result} {b}"
    if kind == "timer":
        n = rng.randint(2, 180)
        phrase = rng.choice(["set a timer for {n} minutes", "start a timer of {n} minutes"]).format(n=n)
        return f"timer:{n}", phrase, [n], f"timer of {n} minutes", "ok", f"The timer is set for {n} minutes"
    if kind == "message":
        name, note = rng.choice(kFirstNames), rng.choice(kNotes)
        phrase = rng.choice(["send {n} the message: {t}", "text {n}: {t}", "write to {n}: {t}"]).format(n=name, t=note)
        return f"message:{name}:{note}", phrase, [name, note], f"message to {name}", "ok", f"I sent your message to {name}"
    if kind == "stock":
        symbol = "".join(rng.choice(kLetters) for _ in range(3))
        price = f"{rng.randint(2, 900)}.{rng.randint(0, 99):02d}"
        phrase = rng.choice(["get the stock price of {s}", "tell me the price of {s} shares", "look up {s} stock"]).format(s=symbol)
        return f"stock:{symbol}", phrase, [symbol], f"stock price of {symbol}", price, f"{symbol} stands at {price}"
    if kind == "light":
        room, on = rng.choice(kRooms), rng.random() < 0.5
        word = "on" if on else "off"
        phrase = rng.choice(["turn {w} the light in the {r}", "switch {w} the {r} light", "turn the {r} light {w}"]).format(w=word, r=room)
        return f"light:{room}:{word}", phrase, [room, on], f"{room} light {word}", "ok", f"The {room} light is {word}"
    chore, day = rng.choice(kChores), rng.choice(kDays)
    phrase = rng.choice(["remind me to {c} on {d}", "create a reminder for {d} to {c}"]).format(c=chore, d=day)
    return f"reminder:{chore}:{day}", phrase, [chore, day], f"reminder for {day}", "ok", f"I will remind you to {chore} on {day}"


def _sentence(rng, phrases):
    text = ", ".join(phrases[:-1]) + (" and " if len(phrases) > 1 else "") + phrases[-1]
    form = rng.choice(["Please {p}.", "{P}.", "Can you {p}?", "Could you {p}?", "{P}, please.", "I need you to {p}."])
    return form.format(p=text, P=text[0].upper() + text[1:])


def _short_question(rng, kind, values):
    """A plain question in place of a request, where one is natural."""
    if kind == "weather" and not values[1]:
        return rng.choice(["What is the weather in {}?", "How is the weather in {}?", "What's the weather like in {}?", "What's the weather in {}?",
                           "What is the weather like in {} today?", "Weather in {}?", "What is the weather in {} right now?",
                           "Is it raining in {}?", "How warm is it in {}?", "What is the temperature in {}?"]).format(values[0])
    if kind == "time":
        return rng.choice(["What time is it in {}?", "What is the time in {}?"]).format(values[0])
    if kind == "calculator":
        return rng.choice(["What is {}?", "How much is {}?"]).format(values[0])
    if kind == "currency":
        return rng.choice(["How much is {} {} in {}?", "What is {} {} in {}?"]).format(*values)
    return None


def _sample(rng):
    """One to three requests of one kind or of mixed kinds."""
    count = 1 if rng.random() < 0.6 else rng.randint(2, 3)
    first = rng.choice(kKinds)
    kinds = [first] * count if rng.random() < 0.6 else rng.sample(kKinds, count)
    requests = [(kind,) + _request(rng, kind) for kind in kinds]
    return "tools:" + "|".join(r[1] for r in requests), requests


def _declarations(rng, kinds):
    declared = {kind: _declare(rng, kind) for kind in kinds}
    tools = [d[0] for d in declared.values()]
    rng.shuffle(tools)
    return declared, tools


def _calls(requests, declared):
    calls = []
    for i, (kind, _, _, values, *_rest) in enumerate(requests):
        _, name, args = declared[kind]
        arguments = {k: v for k, v in zip(args, values) if v is not None}
        calls.append({"id": f"call_{i + 1}", "type": "function", "function": {"name": name, "arguments": json.dumps(arguments)}})
    return calls


def exchange(rng, split):
    """(key, messages, tools); the last assistant message is the one that counts."""
    if rng.random() < 0.12:
        return _plain(rng, split)
    key, requests = draw(rng, split, _sample)
    kinds = list(dict.fromkeys(r[0] for r in requests))
    others = [k for k in kKinds if k not in kinds]
    fits = rng.random() > 0.08 or len(requests) > 1
    extra = rng.sample(others, rng.choice((0, 0, 1, 1, 2, 3) if fits else (1, 1, 2, 3)))
    declared, tools = _declarations(rng, (kinds if fits else []) + extra)
    if fits and any(r[0] == "weather" and r[3][1] for r in requests):  # days were asked for, so they must be declared
        while len(next(t for t in tools if t["function"]["name"] == declared["weather"][1])["function"]["parameters"]["properties"].keys()
                  & {"days", "num_days"}) == 0:
            declared, tools = _declarations(rng, kinds + extra)
    question = (len(requests) == 1 and rng.random() < 0.5 and _short_question(rng, requests[0][0], requests[0][3])) \
        or _sentence(rng, [r[2] for r in requests])
    messages = [{"role": "user", "content": question}]
    topics = join_and([r[4] for r in requests])
    if not fits:
        messages.append({"role": "assistant", "reasoning_content": f"{topics}: no tool fits.",
                         "content": "I have no tool for that."})
        return key + ":no-fit", messages, tools
    calls = _calls(requests, declared)
    names = join_and(list(dict.fromkeys(c["function"]["name"] for c in calls)))
    messages.append({"role": "assistant", "reasoning_content": f"{topics}: I will call {names}.", "content": "", "tool_calls": calls})
    if rng.random() < 0.45:
        for call, request in zip(calls, requests):
            messages.append({"role": "tool", "tool_call_id": call["id"], "content": request[5]})
        messages.append({"role": "assistant", "reasoning_content": "I have the results.",
                         "content": ". ".join(r[6] for r in requests) + "."})
    return key, messages, tools


def _plain(rng, split):
    """A question that the declared tools do not help with: answered directly."""
    key, messages = chat.fact_exchange(rng, split)
    kinds = rng.sample([k for k in kKinds if k != "search"], rng.randint(1, 2))
    return "tools-plain:" + key, messages, _declarations(rng, kinds)[1]


def eval_items(rng, count):
    items = []
    while len(items) < count:
        _, messages, tools = exchange(rng, EVAL)
        last = messages[-1]
        if last.get("tool_calls"):
            answer = {"type": "tool_calls", "calls": [
                {"name": c["function"]["name"], "arguments": json.loads(c["function"]["arguments"])} for c in last["tool_calls"]]}
        else:
            answer = {"type": "text", "text": last["content"]}
        items.append({"messages": messages[:-1], "tools": tools, "thinking": True, "max_tokens": 240, "answer": answer,
                      "thought": last["reasoning_content"]})
    return items
