"""An agent with the official `openai` SDK: it asks a model, runs the tools that the model calls, and gives the results back
until there is an answer.

    build/perigee serve models/tiny-k31 --port 8000
    python examples/agent.py                                 # its scripted tasks, and how many it completes
    python examples/agent.py "What is 512 - 87?"             # your own

Weather, rates and pages below are tables, so that every run is the same; the arithmetic is real.
"""

import argparse
import ast
import json
import operator
import sys

import openai

WEATHER = {"Krakow": "sunny, 12C", "Lisbon": "rain, 17C", "Oslo": "snow, -3C", "Tokyo": "cloudy, 21C"}
RATES = {"EUR": 1.0, "USD": 1.08, "GBP": 0.86, "JPY": 163.0}
PAGES = ["a guide to electric cars", "a guide to coral reefs", "books about coral reefs", "books about bird migration", "news about bird migration"]
OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.USub: operator.neg}


def calculate(expr):
    def value(node):
        match node:
            case ast.Constant(value=int() | float() as number):
                return number
            case ast.BinOp(left=left, op=op, right=right) if type(op) in OPERATORS:
                return OPERATORS[type(op)](value(left), value(right))
            case ast.UnaryOp(op=ast.USub(), operand=operand):
                return -value(operand)
        raise ValueError("only numbers, +, - and * are known")

    return str(value(ast.parse(expr, mode="eval").body))


def get_weather(city):
    return WEATHER[city]


def search_web(query):
    return f"{sum(query in page or page in query for page in PAGES)} pages found."


def convert_currency(amount, source, target):
    return f"{amount / RATES[source] * RATES[target]:.2f}"


def tool(function, description, **parameters):
    schema = {"type": "object", "properties": {name: {"type": kind} for name, kind in parameters.items()}, "required": list(parameters)}
    return function, {"type": "function", "function": {"name": function.__name__, "description": description, "parameters": schema}}


TOOLS = [
    tool(calculate, "Do exact arithmetic.", expr="string"),
    tool(get_weather, "Returns the weather forecast.", city="string"),
    tool(search_web, "Search the web.", query="string"),
    tool(convert_currency, "Currency conversion.", amount="number", source="string", target="string"),
]
FUNCTIONS = {schema["function"]["name"]: function for function, schema in TOOLS}


def run_tool(call):
    """The result as text; a failure is a result too, which the model may report or act on."""
    try:
        return FUNCTIONS[call.function.name](**json.loads(call.function.arguments))
    except Exception as error:  # whatever a tool raises is the model's to hear
        return f"error: {error}"


def answer(client, model, messages, most_rounds=6):
    """Appends the model's turns and the tools' results to `messages`; the final text, and the calls made."""
    calls = []
    for _ in range(most_rounds):
        turn = client.chat.completions.create(model=model, messages=messages, tools=[schema for _, schema in TOOLS], temperature=0).choices[0].message
        messages.append(turn.model_dump(exclude_none=True))
        if not turn.tool_calls:
            return turn.content or "", calls
        for call in turn.tool_calls:
            result = run_tool(call)
            calls.append((call.function.name, call.function.arguments, result))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    return "", calls


# Conversations: what the user says, and what the answer must hold, turn after turn.
TASKS = [
    [(f"Please work out {a} {op} {b}.", calculate(f"{a} {op} {b}"))]
    for a, op, b in [(37507, "-", 53698), (58328, "-", 21845), (812, "+", 9377), (4410, "+", 35212), (70011, "-", 8), (123, "+", 456)]
] + [
    [("What is the weather in Krakow?", "12C")],
    [("What is the weather in Oslo?", "-3C")],
    [("What is the weather in Lisbon?", "17C"), ("What is the weather in Tokyo?", "21C")],
    [("Search the web for books about coral reefs.", "1 pages")],
    [("Could you search the web for a guide to electric cars?", "1 pages")],
    [("Change 100 EUR into USD, please.", "108.00")],
    [("Change 587 EUR into JPY, please.", "95681.00")],
    [("Please work out 5121 + 77.", "5198"), ("What is the weather in Krakow?", "12C")],
    [("What is the weather in Oslo?", "snow"), ("Please work out 900 - 1.", "899"), ("Search the web for news about bird migration.", "1 pages")],
    [("Switch off the bathroom light.", "no tool")],
    [("What is the weather in Atlantis?", "failed")],
    [("Please work out 31 + 31 and get the weather in Tokyo.", "62")],
    [("Change 50 GBP into EUR, please.", "58.14"), ("Please work out 58 - 50.", "8")],
    [("Could you search the web for books about bird migration?", "1 pages"), ("Change 10 USD into EUR, please.", "9.26")],
]  # fmt: skip


def completes(client, model, task):
    messages = []
    for question, wanted in task:
        messages.append({"role": "user", "content": question})
        text, calls = answer(client, model, messages)
        right = wanted in text
        print(f"{'ok  ' if right else 'FAIL'} {question}\n     {text}   {[f'{name}({arguments}) = {result}' for name, arguments, result in calls]}")
        if not right:
            return False
    return True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("question", nargs="?")
    parser.add_argument("--base-url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--api-key", default="none")
    parser.add_argument("--at-least", type=float, default=0.9, help="share of the tasks that must be completed")
    options = parser.parse_args()
    client = openai.OpenAI(base_url=options.base_url, api_key=options.api_key)
    model = client.models.list().data[0].id
    if options.question:
        text, calls = answer(client, model, [{"role": "user", "content": options.question}])
        for name, arguments, result in calls:
            print(f"{name}({arguments}) = {result}")
        print(text)
        return 0
    done = sum(completes(client, model, task) for task in TASKS)
    print(f"{done} of {len(TASKS)} tasks completed")
    return 0 if done >= options.at_least * len(TASKS) else 1


if __name__ == "__main__":
    sys.exit(main())
