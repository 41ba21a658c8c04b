"""The likeliest continuations of a text."""

import argparse

from cadence import LLM, BeamSearchParams


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--beam-width", type=int, default=3)
    parser.add_argument("--max-tokens", type=int, default=12)
    args = parser.parse_args()

    with LLM(args.model, max_model_len=512) as llm:
        params = BeamSearchParams(beam_width=args.beam_width, max_tokens=args.max_tokens)
        for output in llm.beam_search(["The capital of France is"], params):
            for sequence in output.sequences:
                print(f"{sequence.cum_logprob:8.3f}  {sequence.text!r}")


if __name__ == "__main__":
    main()
