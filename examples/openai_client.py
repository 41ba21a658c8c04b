"""Ask a server with OpenAI's client: whole answers, streams, and what the tokens were worth."""

import argparse

from openai import OpenAI

QUESTION = [{"role": "user", "content": "Who wrote Romeo and Juliet?"}]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url", default="http://127.0.0.1:8000/v1")
    parser.add_argument("--max-tokens", type=int, default=48)
    args = parser.parse_args()

    client = OpenAI(base_url=args.url, api_key="none")
    model = client.models.list().data[0].id

    answer = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=args.max_tokens)
    print(answer.choices[0].message.content)

    stream = client.chat.completions.create(model=model, messages=QUESTION, max_tokens=args.max_tokens, stream=True)
    for chunk in stream:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
    print()

    completion = client.completions.create(model=model, prompt="One, two,", max_tokens=6, logprobs=2, temperature=0)
    for token, best in zip(completion.choices[0].logprobs.tokens, completion.choices[0].logprobs.top_logprobs):
        print(f"{token!r:>10}  {best}")


if __name__ == "__main__":
    main()
