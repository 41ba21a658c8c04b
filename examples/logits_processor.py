"""Change what may be said next: no token twice."""

import argparse

import torch

from cadence import LLM, SamplingParams


def no_token_twice(output_ids: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[output_ids] = float("-inf")
    return logits


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()

    with LLM(args.model, max_model_len=512) as llm:
        for processors in (None, [no_token_twice]):
            params = SamplingParams(temperature=0, max_tokens=args.max_tokens, logits_processors=processors)
            completion = llm.generate("The the the the", params, use_tqdm=False)[0].outputs[0]
            print(f"{len(set(completion.token_ids))} different tokens: {completion.text!r}")


if __name__ == "__main__":
    main()
