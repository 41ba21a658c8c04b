"""A file of requests in, a file of answers out, as OpenAI's batches have them; one engine for all."""

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

QUESTIONS = ["What is a prime number?", "Name three planets.", "What does a compiler do?"]


def request(number: int, question: str, max_tokens: int) -> str:
    body = {"model": "smollm2", "messages": [{"role": "user", "content": question}], "max_tokens": max_tokens}
    return json.dumps({"custom_id": f"q{number}", "method": "POST", "url": "/v1/chat/completions", "body": body})


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=32)
    args = parser.parse_args()

    with tempfile.TemporaryDirectory() as folder:
        requests, answers = Path(folder) / "requests.jsonl", Path(folder) / "answers.jsonl"
        lines = [request(number, question, args.max_tokens) for number, question in enumerate(QUESTIONS)]
        requests.write_text("\n".join(lines) + "\n")
        command = [sys.executable, "-m", "cadence", "run-batch", "-i", str(requests), "-o", str(answers)]
        subprocess.run([*command, "--model", args.model, "--served-model-name", "smollm2"], check=True)
        for line in answers.read_text().splitlines():
            answer = json.loads(line)
            message = answer["response"]["body"]["choices"][0]["message"]
            print(f"{answer['custom_id']}: {message['content']!r}")


if __name__ == "__main__":
    main()
