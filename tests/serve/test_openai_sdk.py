"""Every route that the official SDK speaks to, with the SDK: whole, streamed, asynchronous, tools, errors."""

import asyncio
import json
import threading

import openai
import pytest
from server import MODEL, needs_model

pytestmark = needs_model
QUESTION = [{"role": "user", "content": "What is 17 + 25?"}]
TOOLS = json.loads((__import__("server").ROOT / "docs/examples/tools.json").read_text())


@pytest.fixture(scope="session")
def client(server):
    return openai.OpenAI(base_url=server.url + "/v1", api_key="none", max_retries=0, timeout=60)


def ask(client, messages=QUESTION, **more):
    return client.chat.completions.create(model=MODEL, messages=messages, temperature=0, **more)


def test_models(client):
    models = client.models.list().data
    assert [m.id for m in models] == [MODEL]
    assert client.models.retrieve(MODEL).id == MODEL
    with pytest.raises(openai.NotFoundError):
        client.models.retrieve("absent")


def test_an_answer(client):
    r = ask(client)
    choice = r.choices[0]
    assert choice.message.content == "42" and choice.finish_reason == "stop" and choice.message.role == "assistant"
    assert choice.message.reasoning and choice.message.reasoning == choice.message.reasoning_content
    assert r.usage.total_tokens == r.usage.prompt_tokens + r.usage.completion_tokens
    assert r.object == "chat.completion" and r.model == MODEL and r.id.startswith("chatcmpl-")


def test_a_stream_is_the_whole(client):
    whole = ask(client, logprobs=True, top_logprobs=2)
    content = reasoning = ""
    finish, usages, logprobs = [], [], []
    for chunk in ask(client, logprobs=True, top_logprobs=2, stream=True, stream_options={"include_usage": True}):
        usages.append(chunk.usage)
        for choice in chunk.choices:
            content += choice.delta.content or ""
            reasoning += getattr(choice.delta, "reasoning", None) or ""
            finish += [choice.finish_reason] if choice.finish_reason else []
            logprobs += choice.logprobs.content if choice.logprobs else []
    message = whole.choices[0].message
    assert (content, reasoning, finish) == (message.content, message.reasoning, ["stop"])
    assert usages[:-1] == [None] * (len(usages) - 1) and usages[-1].completion_tokens == whole.usage.completion_tokens
    assert logprobs == whole.choices[0].logprobs.content
    assert len(logprobs) == whole.usage.completion_tokens
    for one in logprobs:  # greedy: the token drawn is the likeliest
        assert one.top_logprobs[0].token == one.token and one.top_logprobs[0].logprob == one.logprob
        assert one.top_logprobs[1].logprob <= one.logprob <= 0


def test_the_stream_helper(client):
    with client.chat.completions.stream(model=MODEL, messages=QUESTION, temperature=0) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "content.delta" in kinds and final.choices[0].message.content == "42"


def test_async(server):
    async def main():
        async with openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=60) as client:
            async def one(a):
                r = await client.chat.completions.create(
                    model=MODEL, messages=[{"role": "user", "content": f"What is {a} + 25?"}], temperature=0)
                return r.choices[0].message.content

            async def streamed():
                text = ""
                async for chunk in await client.chat.completions.create(model=MODEL, messages=QUESTION, temperature=0, stream=True):
                    text += chunk.choices[0].delta.content or ""
                return text

            return await asyncio.gather(*(one(a) for a in range(11, 23)), streamed())

    assert asyncio.run(main()) == [str(a + 25) for a in range(11, 23)] + ["42"]


def test_thinking_off(client):
    r = ask(client, extra_body={"chat_template_kwargs": {"thinking": False}})
    assert not hasattr(r.choices[0].message, "reasoning")


def test_a_tool_call_round_trip(client):
    messages = [{"role": "user", "content": "What is the weather in Krakow?"}]
    first = ask(client, messages, tools=TOOLS)
    choice = first.choices[0]
    assert choice.finish_reason == "tool_calls" and choice.message.content is None
    call = choice.message.tool_calls[0]
    assert call.function.name == "get_current_weather" and json.loads(call.function.arguments) == {"city": "Krakow"}
    messages += [choice.message, {"role": "tool", "tool_call_id": call.id, "content": "sunny, 12C"}]
    assert "12C" in ask(client, messages, tools=TOOLS).choices[0].message.content
    streamed = []
    for chunk in ask(client, messages[:1], tools=TOOLS, stream=True):
        streamed += chunk.choices[0].delta.tool_calls or []
    assert [(c.index, c.function.name, c.function.arguments, c.type) for c in streamed] == [
        (0, call.function.name, call.function.arguments, "function")]


def test_several_answers_are_those_of_their_seeds(client):
    kwargs = {"messages": [{"role": "user", "content": "Tell me something."}], "model": MODEL, "temperature": 1.5, "max_tokens": 12}
    three = client.chat.completions.create(**kwargs, n=3, seed=5, extra_body={"return_token_ids": True})
    assert [c.index for c in three.choices] == [0, 1, 2]
    alone = [client.chat.completions.create(**kwargs, seed=5 + i, extra_body={"return_token_ids": True}) for i in range(3)]
    assert [c.token_ids for c in three.choices] == [a.choices[0].token_ids for a in alone]
    assert len({tuple(c.token_ids) for c in three.choices}) > 1


def test_stop_strings_and_length(client):
    messages = [{"role": "user", "content": "Sort these names: Helen, Emma, Olivia, Fatima"}]
    full = ask(client, messages).choices[0].message.content
    assert full == "Emma, Fatima, Helen, Olivia"
    cut = ask(client, messages, stop=["Hel"])
    assert cut.choices[0].message.content == "Emma, Fatima, " and cut.choices[0].finish_reason == "stop"
    assert cut.choices[0].stop_reason == "Hel"
    short = ask(client, messages, max_tokens=3)
    assert short.choices[0].finish_reason == "length" and short.usage.completion_tokens == 3


def test_prefixes_are_reused(client):
    long = [{"role": "user", "content": "Remember: " + "the code of Oslo is 4711. " * 60 + "What is 2 + 3?"}]
    first, again = ask(client, long), ask(client, long)
    assert again.usage.prompt_tokens_details.cached_tokens > first.usage.prompt_tokens_details.cached_tokens
    assert again.choices[0].message == first.choices[0].message


def test_text_completions(client):
    r = client.completions.create(model=MODEL, prompt=["one two", "three"], max_tokens=4, temperature=0, logprobs=2, echo=True)
    assert [c.index for c in r.choices] == [0, 1]
    for choice, prompt in zip(r.choices, ["one two", "three"]):
        assert choice.text.startswith(prompt)
        l = choice.logprobs
        assert l.token_logprobs[0] is None and all(x <= 0 for x in l.token_logprobs[1:])
        assert len(l.tokens) == len(l.token_logprobs) == len(l.top_logprobs) == len(l.text_offset)
    text = ""
    for chunk in client.completions.create(model=MODEL, prompt="one two", max_tokens=4, temperature=0, stream=True):
        text += chunk.choices[0].text
    assert "one two" + text == r.choices[0].text


def test_scores_of_a_prompt_are_those_of_its_generation(client):
    """Log-probabilities of a text as a prompt, bit for bit those with which it was generated."""
    made = client.completions.create(model=MODEL, prompt="the", max_tokens=12, temperature=0, logprobs=0,
                                     extra_body={"return_token_ids": True, "ignore_eos": True})
    choice = made.choices[0]
    ids = choice.prompt_token_ids + choice.token_ids
    scored = client.completions.create(model=MODEL, prompt=ids, max_tokens=0, logprobs=0, echo=True)
    assert scored.choices[0].logprobs.token_logprobs[len(choice.prompt_token_ids):] == choice.logprobs.token_logprobs


@pytest.mark.parametrize(
    "kwargs, error, word",
    [
        ({"temperature": -1}, openai.BadRequestError, "temperature"),
        ({"max_tokens": 10**6}, openai.BadRequestError, "8192"),
        ({"model": "absent"}, openai.NotFoundError, "absent"),
        ({"messages": []}, openai.BadRequestError, "messages"),
        ({"tool_choice": "required"}, openai.BadRequestError, "tool_choice"),
        ({"extra_body": {"structured_outputs": {"regex": "(a"}}}, openai.BadRequestError, "regular expression"),
    ],
)
def test_errors(client, kwargs, error, word):
    with pytest.raises(error) as caught:
        client.chat.completions.create(**{"model": MODEL, "messages": QUESTION, **kwargs})
    assert word in caught.value.body["message"] and caught.value.body["type"] == "invalid_request_error"


def test_closing_a_stream_frees_the_engine(client, server):
    import time
    import urllib.request

    def running():
        text = urllib.request.urlopen(server.url + "/metrics").read().decode()
        return sum(float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                   if line.startswith(("perigee:num_requests_running", "perigee:num_requests_waiting")))

    stream = ask(client, max_tokens=7000, stream=True, extra_body={"ignore_eos": True})
    next(iter(stream))
    assert running() == 1
    stream.close()
    end = time.monotonic() + 10
    while running() and time.monotonic() < end:
        time.sleep(0.01)
    assert running() == 0


def test_answers_do_not_depend_on_the_others(client):
    alone = ask(client, logprobs=True)
    results = [None] * 8

    def other(i):
        results[i] = ask(client, QUESTION if i % 2 else [{"role": "user", "content": f"Tell me about {i}!"}], logprobs=True)

    threads = [threading.Thread(target=other, args=(i,)) for i in range(8)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    for i in range(1, 8, 2):
        assert results[i].choices[0].logprobs == alone.choices[0].logprobs


RESPONSE_TOOLS = [{"type": "function", **tool["function"], "strict": False} for tool in TOOLS]


def test_responses(client):
    r = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0)
    assert r.output_text == "42" and r.status == "completed" and r.error is None
    assert [item.type for item in r.output] == ["reasoning", "message"]
    assert r.usage.total_tokens == r.usage.input_tokens + r.usage.output_tokens
    short = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0, max_output_tokens=2)
    assert short.status == "incomplete" and short.incomplete_details.reason == "max_output_tokens"
    with pytest.raises(openai.BadRequestError, match="previous_response_id"):
        client.responses.create(model=MODEL, input="x", previous_response_id="resp_1")


def test_responses_stream_to_the_same_response(client):
    whole = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0)
    kinds, text, numbers = [], "", []
    with client.responses.stream(model=MODEL, input="What is 17 + 25?", temperature=0) as stream:
        for event in stream:
            kinds.append(event.type)
            numbers.append(event.sequence_number)
            if event.type == "response.output_text.delta":
                text += event.delta
        final = stream.get_final_response()
    assert kinds[:2] == ["response.created", "response.in_progress"] and kinds[-1] == "response.completed"
    assert numbers == list(range(len(numbers)))
    assert text == final.output_text == whole.output_text
    assert [item.type for item in final.output] == [item.type for item in whole.output]


def test_responses_with_a_tool(client):
    items = [{"role": "user", "content": "What is the weather in Krakow?"}]
    first = client.responses.create(model=MODEL, input=items, tools=RESPONSE_TOOLS, temperature=0)
    call = first.output[-1]
    assert call.type == "function_call" and call.name == "get_current_weather" and json.loads(call.arguments) == {"city": "Krakow"}
    items += [item.model_dump(exclude_none=True) for item in first.output]
    items.append({"type": "function_call_output", "call_id": call.call_id, "output": "sunny, 12C"})
    assert "12C" in client.responses.create(model=MODEL, input=items, tools=RESPONSE_TOOLS, temperature=0).output_text


def test_responses_and_chat_are_one_model(client):
    """The same conversation has the same prompt in both APIs."""
    chat = ask(client)
    response = client.responses.create(model=MODEL, input="What is 17 + 25?", temperature=0)
    assert response.usage.input_tokens == chat.usage.prompt_tokens and response.output_text == chat.choices[0].message.content


def test_the_agents_sdk(server):
    agents = pytest.importorskip("agents")
    agents.set_tracing_disabled(True)

    @agents.function_tool(strict_mode=False)
    def calculate(expr: str) -> str:
        """Do exact arithmetic."""
        a, op, b = expr.split()
        return str(int(a) + int(b) if op == "+" else int(a) - int(b))

    client = openai.AsyncOpenAI(base_url=server.url + "/v1", api_key="none", timeout=60)
    agent = agents.Agent(name="sums", model=agents.OpenAIChatCompletionsModel(MODEL, client), tools=[calculate],
                         model_settings=agents.ModelSettings(temperature=0))
    result = asyncio.run(agents.Runner.run(agent, "Please work out 37507 - 53698."))
    assert "-16191" in result.final_output
    assert any(type(item).__name__ == "ToolCallOutputItem" and item.output == "-16191" for item in result.new_items)


def test_the_agent_example(server):
    import subprocess
    import sys

    from server import ROOT

    done = subprocess.run([sys.executable, "examples/agent.py", "--base-url", server.url + "/v1"], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout


def test_parse_helpers(client):
    import pydantic

    class Person(pydantic.BaseModel):
        name: str
        age: int

    for thinking in (True, False):
        r = client.chat.completions.parse(
            model=MODEL, messages=[{"role": "user", "content": "Tell me something."}], temperature=1, seed=3,
            response_format=Person, extra_body={"chat_template_kwargs": {"thinking": thinking}}, max_tokens=600)
        assert r.choices[0].finish_reason == "stop" and isinstance(r.choices[0].message.parsed, Person)


def test_parse_helper_of_tools(client):
    import pydantic

    class Weather(pydantic.BaseModel):
        city: str
        days: int

    tool = openai.pydantic_function_tool(Weather, name="get_weather", description="Returns the weather forecast.")
    r = client.chat.completions.parse(model=MODEL, messages=[{"role": "user", "content": "What is the weather in Krakow?"}],
                                      temperature=0, tools=[tool], tool_choice="required", max_tokens=600)
    assert r.choices[0].finish_reason == "tool_calls"
    for call in r.choices[0].message.tool_calls:
        assert isinstance(call.function.parsed_arguments, Weather)


@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "calculate"}}])
def test_forced_calls(client, choice, thinking):
    """Even where the question asks for no tool, and whatever is drawn."""
    r = ask(client, [{"role": "user", "content": "Tell me about perigee!"}], tools=TOOLS, tool_choice=choice, max_tokens=900,
            extra_body={"chat_template_kwargs": {"thinking": thinking}})
    calls = r.choices[0].message.tool_calls
    assert r.choices[0].finish_reason == "tool_calls" and calls
    for call in calls:
        assert call.function.name in (["calculate"] if isinstance(choice, dict) else ["calculate", "get_current_weather"])
        json.loads(call.function.arguments)


@pytest.mark.parametrize("form, pattern", [
    ({"choice": ["red", "green", "blue"]}, "red|green|blue"),
    ({"regex": "[A-Z]{3}-[0-9]{2}"}, "[A-Z]{3}-[0-9]{2}"),
    ({"grammar": 'root ::= "(" [ab]{1,4} ")"'}, r"\([ab]{1,4}\)"),
])
def test_structured_outputs(client, form, pattern):
    import re

    for seed in range(3):
        r = client.completions.create(model=MODEL, prompt="the", max_tokens=40, temperature=2, seed=seed, extra_body={"structured_outputs": form})
        assert r.choices[0].finish_reason == "stop" and re.fullmatch(pattern, r.choices[0].text), r.choices[0].text
    r = ask(client, max_tokens=400, extra_body={"structured_outputs": form})
    assert re.fullmatch(pattern, r.choices[0].message.content)


def test_any_json_object(client):
    for seed in range(3):
        r = client.chat.completions.create(model=MODEL, messages=QUESTION, seed=seed, temperature=1, max_tokens=1500, response_format={"type": "json_object"})
        if r.choices[0].finish_reason == "stop":
            assert isinstance(json.loads(r.choices[0].message.content), dict)
