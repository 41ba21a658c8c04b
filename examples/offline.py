"""Complete a list of prompts."""

import argparse

from cadence import LLM, SamplingParams

PROMPTS = ["The sea is", "The capital of France is", "A good scheduler", "Once upon a time"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=32)
    args = parser.parse_args()

    with LLM(args.model, max_model_len=1024) as llm:
        params = llm.get_default_sampling_params()  # what the model's authors recommend
        params.max_tokens = args.max_tokens
        for output in llm.generate(PROMPTS, params):
            completion = output.outputs[0]
            print(f"{output.prompt!r} → {completion.text!r} ({completion.finish_reason})")

        # One prompt with settings of its own each: greedy, and three different continuations.
        mixed = [
            SamplingParams(temperature=0, max_tokens=8),
            SamplingParams(n=3, seed=1, temperature=0.8, max_tokens=8),
        ]
        for output in llm.generate(["Two and two are", "My favourite colour is"], mixed):
            print(output.prompt, [completion.text for completion in output.outputs])


if __name__ == "__main__":
    main()
