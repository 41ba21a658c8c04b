"""A script as people wrote it for vLLM. Nothing in it is of Cadence."""

from vllm import LLM, EngineArgs
from vllm.outputs import RequestOutput
from vllm.sampling_params import SamplingParams
from vllm.utils.argparse_utils import FlexibleArgumentParser


def show(output: RequestOutput) -> None:
    print(f"{output.prompt!r} → {output.outputs[0].text!r}")


def main() -> None:
    parser = FlexibleArgumentParser()
    EngineArgs.add_cli_args(parser)
    parser.set_defaults(model="facebook/opt-125m", max_model_len=512)
    llm = LLM(**vars(parser.parse_args()))
    params = SamplingParams(temperature=0.2, top_p=0.9, max_tokens=16)
    for output in llm.generate(["Hello, my name is", "The capital of France is"], params):
        show(output)


if __name__ == "__main__":
    main()
