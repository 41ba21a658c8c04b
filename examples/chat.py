"""A conversation of two turns."""

import argparse

from cadence import LLM


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=64)
    args = parser.parse_args()

    messages = [{"role": "system", "content": "You answer in one sentence."}]
    with LLM(args.model, max_model_len=2048) as llm:
        params = llm.get_default_sampling_params()
        print(f"temperature {params.temperature}, top_p {params.top_p}")
        params.max_tokens = args.max_tokens
        for question in ("Who wrote Romeo and Juliet?", "When did he live?"):
            messages.append({"role": "user", "content": question})
            output = llm.chat(messages, params, use_tqdm=False)[0]
            answer = output.outputs[0].text.strip()
            messages.append({"role": "assistant", "content": answer})
            # The second turn begins with the first, which is in the cache by then.
            print(f"> {question}\n{answer}\n[{output.num_cached_tokens} tokens of the prompt were cached]")


if __name__ == "__main__":
    main()
