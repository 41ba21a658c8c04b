"""Let the model of a server call a function. `cadence serve MODEL --tool-call-parser hermes`

A very small model calls no function, or the wrong one: then its answer is shown as it is.
"""

import argparse
import json

from openai import OpenAI

WEATHER = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "description": "The weather in a city now",
        "parameters": {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]},
    },
}


def get_weather(city: str = "") -> str:
    return json.dumps({"city": city, "temperature": 21, "sky": "clear"})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--max-tokens", type=int, default=96)
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key="none")
    model = client.models.list().data[0].id
    messages = [{"role": "user", "content": "What is the weather in Paris? Use the function."}]
    for _ in range(3):  # a call, its result, the answer; a model that goes on calling is stopped
        options = {"messages": messages, "tools": [WEATHER], "max_tokens": args.max_tokens}
        message = client.chat.completions.create(model=model, **options).choices[0].message
        messages.append(message.model_dump(exclude_none=True))
        if not message.tool_calls:
            print(f"the answer: {message.content}")
            return
        for call in message.tool_calls:
            print(f"the model calls {call.function.name}({call.function.arguments})")
            try:
                result = get_weather(**json.loads(call.function.arguments))
            except (TypeError, ValueError) as error:
                result = f"error: {error}"
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})
    print("the model went on calling")


if __name__ == "__main__":
    main()
