"""Several streams at once, from an engine in a process of its own."""

import argparse
import asyncio

from cadence import AsyncLLM, EngineArgs, RequestOutputKind, SamplingParams

PROMPTS = {"sea": "The sea is", "city": "The city at night", "bread": "To bake a bread, you"}


async def stream(engine: AsyncLLM, name: str, params: SamplingParams) -> str:
    text = ""
    async for output in engine.generate(PROMPTS[name], params, request_id=name):
        text += output.outputs[0].text  # only what is new, with DELTA
        print(f"{name:>6} +{output.outputs[0].text!r}")
    return text


async def run(model: str, max_tokens: int) -> None:
    engine = await AsyncLLM.start(EngineArgs(model=model, max_model_len=1024))
    try:
        options = {**engine.default_sampling, "max_tokens": max_tokens}
        params = SamplingParams(**options, output_kind=RequestOutputKind.DELTA)
        texts = await asyncio.gather(*(stream(engine, name, params) for name in PROMPTS))
        for name, text in zip(PROMPTS, texts, strict=True):
            print(f"{name}: {PROMPTS[name]}{text}")
    finally:
        await engine.shutdown(drain=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--max-tokens", type=int, default=24)
    args = parser.parse_args()
    asyncio.run(run(args.model, args.max_tokens))


if __name__ == "__main__":
    main()
