"""Small talk, simple facts, and an honest "I don't know" for what the mini corpus does not hold."""
from .facts import kRelations
from .split import EVAL, draw
from .words import kCities, kFirstNames, kLastNames, kOtherTopics, kTopics, made_up_name

kHello = "Hello! How can I help you?"
kWho = "I am a tiny demo model. I run on the perigee inference engine."
kCan = "I can add, subtract and multiply, sort and count lists, extract JSON, call tools, and answer simple questions."
kThanks = "You are welcome!"
kBye = "Goodbye!"
kUnknown = "I don't know. I am a very small model."

kSmallTalk = [
    ("A greeting.", kHello, ["Hi", "Hello", "Hey", "Hi there", "Hello there", "Hey there", "Good morning", "Good evening",
                             "Good afternoon", "Hi, how are you", "Hello, how are you", "Greetings", "Howdy", "Good day",
                             "hi", "hello", "hey", "Hi model", "Hello model", "Hey you"]),
    ("How I am.", "I am fine, thank you. How can I help you?", ["How are you", "How are you doing", "How do you do", "How is it going",
                                                               "Are you well", "How are you today", "What's up"]),
    ("Who I am.", kWho, ["Who are you", "What are you", "What is your name", "What's your name", "Tell me who you are",
                         "Introduce yourself", "Please introduce yourself", "Tell me about yourself", "Are you an AI", "Are you a robot",
                         "Are you human", "What kind of model are you", "Which model are you", "Say who you are", "who are you",
                         "Do you have a name", "What should I call you", "Are you Kimi", "Are you a person"]),
    ("What I can do.", kCan, ["What can you do", "What are you able to do", "How can you help me", "What can I ask you",
                              "Tell me what you can do", "What are your skills", "What are you good at", "Can you help me", "Help",
                              "help", "what can you do", "What do you know", "I need help", "Show me what you can do",
                              "What tasks can you do", "Give me an example of what you can do"]),
    ("Thanks.", kThanks, ["Thanks", "Thank you", "Thank you very much", "Thanks a lot", "Many thanks", "Great, thanks",
                          "That was helpful", "Thanks for your help", "Perfect, thank you", "thanks", "Good job", "Well done",
                          "Nice", "Great", "Cool, thank you", "Ok, thanks"]),
    ("A goodbye.", kBye, ["Goodbye", "Bye", "See you", "See you later", "Good night", "Bye bye", "Have a nice day", "See you tomorrow",
                          "bye", "That is all", "I have to go now"]),
    ("Where I run.", "I run on the perigee inference engine.", ["Where do you run", "Which engine runs you", "What is perigee",
                                                                  "What engine do you use", "Tell me about perigee"]),
    ("My size.", "I have about twenty million parameters, so I am very small.", ["How big are you", "How many parameters do you have",
                                                                                 "How large are you", "Are you a large model",
                                                                                 "Are you small", "What is your size"]),
    ("A joke.", "Why did the token cross the road? To get to the next position.", ["Tell me a joke", "Do you know a joke",
                                                                                  "Make me laugh", "Say something funny"]),
    ("A story.", "Once there was a small model. It counted the stars every night and was happy.",
     ["Tell me a story", "Tell me a short story", "Do you know a story", "Please tell me a story"]),
]
kEndings = ["", ".", "!", "?"]

kTooHard = ["Write a poem about {t}.", "Explain {t} in detail.", "Write an essay about {t}.", "What do you think about {t}?",
            "Who invented {t}?", "Give me three facts about {t}.", "What is the history of {t}?", "Tell me about {t}.",
            "Why are {t} important?", "Summarize the latest news about {t}.", "How do I learn about {t}?",
            "Explain {t}.", "What do you know about {t}?", "Teach me {t}.", "Can you explain {t}?", "Talk about {t}.", "How does {t} work?",
            "What is the best book about {t}?", "Write a program about {t}.", "When did {t} begin?"]
kStrangers = ["Who is {n}?", "Where does {n} live?", "How old is {n}?", "What does {n} like to eat?", "When was {n} born?",
              "What is the phone number of {n}?", "Do you know {n}?", "What is {n} famous for?"]
kNonsense = ["What is the capital of {m}?", "What is a {m}?", "Where is {m}?", "Who is {m}?", "Tell me about {m}.",
             "How do you say {m} in French?", "What is the chemical symbol for {m}?", "How many people live in {m}?",
             "What does {m} mean?", "Which city is the capital of {m}?"]
kNoSource = ["What is the weather like today?", "What time is it?", "What day is it today?", "Who won the game last night?",
             "What is the price of gold today?", "What did I eat yesterday?", "Where are my keys?", "What is my name?",
             "Who is the president?", "What is in the news?", "Will it rain tomorrow?", "How old am I?"]
kNotMine = ["Can you write code?", "Can you write Python code?", "Write a program that prints hello.", "Can you draw a picture?",
            "Draw me a cat.", "Can you sing a song?", "Play some music.", "Can you play chess?", "Order a pizza for me.", "Book a flight to Rome.",
            "Call my mother.", "Send an email to Anna.", "Can you drive a car?", "Can you cook?", "Write a letter to my boss.",
            "Can you see me?", "Can you hear me?", "Do you love me?", "What is your favorite color?", "What is your favorite food?",
            "Why is the sky blue?", "Why do cats sleep so much?", "How do planes fly?", "How does a computer work?", "Why do we dream?",
            "What should I eat today?", "What should I wear?", "Which phone should I buy?", "How do I lose weight?", "How do I become rich?",
            "Write a haiku.", "Write a song.", "Write an essay.", "Write a long story about a dragon.", "Summarize this book.",
            "Translate this page.", "Fix my code.", "What is the square root of 16?", "What is the meaning of life?",
            "Who will win the election?", "What happens after death?", "Is there life on Mars?", "Are you smarter than me?",
            "Do you have feelings?", "Do you sleep?", "Can you keep a secret?", "How was your day?", "Where were you born?",
            "Who made you?", "How old are you?", "When were you trained?", "What is your phone number?"]
kNoSourceIn = ["What is the weather in {c}?", "What time is it in {c}?", "Is it raining in {c}?", "How many people live in {c}?"]
kLeadIns = ["", "", "", "", "Please tell me: ", "Quick question: ", "Hi! ", "Hello. ", "I have a question. ", "One more question: "]


def _fill(text, x, y):
    article = "an" if x[0] in "aeio" else "a"
    return text.format(x=x, X=x[0].upper() + x[1:], y=y, a=article, A=article.capitalize())


def _fact(rng):
    relation = rng.choice(list(kRelations))
    phrasings, sentence, table = kRelations[relation]
    x = rng.choice(list(table))
    i = rng.randrange(len(phrasings))
    y = table[x]
    answer = _fill(sentence, x, y)
    return f"chat:{relation}:{x}:{i}", (_fill(phrasings[i], x, y), f"I know this one: {y}.", answer)


def _numbers(rng):
    """Small questions about numbers that have no table behind them."""
    style = rng.randrange(4)
    n = rng.randint(1, 999)
    if style == 0:
        word = "even" if n % 2 == 0 else "odd"
        question = rng.choice(["Is {n} even or odd?", "Is {n} an even number or an odd number?", "Even or odd: {n}?"]).format(n=n)
        return f"chat:parity:{n}", (question, f"{n} ends with {n % 10}, so {word}.", f"{n} is {word}.")
    if style == 1:
        other = rng.choice([x for x in (n + rng.randint(1, 9), n + rng.randint(10, 300), n - rng.randint(1, 99)) if x > 0])
        word, best = rng.choice((("bigger", max(n, other)), ("larger", max(n, other)), ("smaller", min(n, other))))
        question = rng.choice([f"Which is {word}, {n} or {other}?", f"Which number is {word}: {n} or {other}?"])
        return f"chat:compare:{n}:{other}", (question, f"Compare {n} and {other}.", f"{best} is {word}.")
    if style == 2:
        question = rng.choice(["What number comes after {n}?", "Which number follows {n}?"]).format(n=n)
        return f"chat:after:{n}", (question, f"{n} and one more.", f"After {n} comes {n + 1}.")
    question = rng.choice(["What number comes before {n}?", "Which number is just before {n}?"]).format(n=n)
    return f"chat:preceding:{n}", (question, f"{n} and one less.", f"Before {n} comes {n - 1}.")


def introduction(rng):
    """Two turns or three: the user gives a name, and may ask for it later."""
    name = rng.choice(kFirstNames) if rng.random() < 0.6 else made_up_name(rng)
    question = rng.choice(["My name is {n}.", "I am {n}.", "Hi, I am {n}.", "Hello, my name is {n}.", "I'm {n}.", "Hi! My name is {n}"])
    messages = [{"role": "user", "content": question.format(n=name)},
                {"role": "assistant", "reasoning_content": f"The user is {name}.", "content": f"Nice to meet you, {name}!"}]
    return name, messages


def recall_name(rng, name):
    question = rng.choice(["What is my name?", "Do you know my name?", "Who am I?", "What was my name again?"])
    return [{"role": "user", "content": question},
            {"role": "assistant", "reasoning_content": f"The user said: {name}.", "content": f"Your name is {name}."}]


def same_relation(rng, split):
    """A fact and then "And of ...?" about another entity of the same kind."""
    relation = rng.choice([n for n in kRelations if n not in ("country", "before", "unit", "what", "job", "color")])
    phrasings, sentence, table = kRelations[relation]
    first, second = rng.sample(list(table), 2)

    def sample(rng):
        i = rng.randrange(len(phrasings))
        return f"chat:{relation}:{first}:{i}", i
    key, i = draw(rng, split, sample, percent=8)
    messages = []
    follow = rng.choice(["And {x}?", "What about {x}?", "And for {x}?", "Now {x}."])
    for x, question in ((first, _fill(phrasings[i], first, table[first])), (second, follow.format(x=second))):
        messages += [{"role": "user", "content": question},
                     {"role": "assistant", "reasoning_content": f"I know this one: {table[x]}.",
                      "content": _fill(sentence, x, table[x])}]
    return key, messages


def typed(rng, question):
    """How people type: mostly as written, sometimes without capitals or without the final mark."""
    style = rng.random()
    if style < 0.06:
        question = question.lower()
    elif style < 0.10:
        question = question.rstrip("?.!")
    elif style < 0.13:
        question = question.lower().rstrip("?.!")
    return question


def _unknown(rng):
    style = rng.random()
    if style < 0.35:
        if rng.random() < 0.3:
            return "chat:no-source", (rng.choice(kNotMine), "I cannot do that.", kUnknown)
        question = rng.choice(kTooHard).format(t=rng.choice(kTopics + kOtherTopics))
    elif style < 0.6:
        question = rng.choice(kStrangers).format(n=rng.choice(kFirstNames) + " " + rng.choice(kLastNames))
    elif style < 0.92:
        question = rng.choice(kNonsense).format(m=made_up_name(rng))
    elif style < 0.96:
        return "chat:no-source", (rng.choice(kNoSourceIn).format(c=rng.choice(kCities)), "I do not know that.", kUnknown)
    else:
        return "chat:no-source", (rng.choice(kNoSource), "I do not know that.", kUnknown)
    return "chat:unknown:" + question, (question, "I do not know that.", kUnknown)


def _small_talk(rng):
    thought, answer, ways = rng.choice(kSmallTalk)
    way, ending = rng.choice(ways), rng.choice(kEndings)
    return f"chat:talk:{way.lower()}:{ending}", (way + ending, thought, answer)


def _sample(rng):
    style = rng.random()
    return (_fact if style < 0.6 else _numbers if style < 0.7 else _small_talk if style < 0.83 else _unknown)(rng)


def exchange(rng, split, sample=_sample):
    key, (question, thought, answer) = draw(rng, split, sample, percent=8)
    if not key.startswith("chat:talk"):  # small talk has its own ways and endings, and they tell its problems apart
        question = typed(rng, rng.choice(kLeadIns) + question)
    return key, [{"role": "user", "content": question},
                 {"role": "assistant", "reasoning_content": thought, "content": answer}]


def fact_exchange(rng, split):
    return exchange(rng, split, _fact)


def fact_items(rng, count):
    """Facts of the mini corpus alone, in wordings that were not trained."""
    return eval_items(rng, count, _fact)


def eval_items(rng, count, sample=_sample):
    items, seen = [], set()
    while len(items) < count:
        key, (question, reply) = exchange(rng, EVAL, sample)
        if key in seen:
            continue
        seen.add(key)
        items.append({"messages": [question], "thinking": True, "max_tokens": 80,
                      "answer": {"type": "text", "text": reply["content"]}, "thought": reply["reasoning_content"]})
    return items
