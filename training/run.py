"""All steps in one command: `python -m training.run --out build/head --minutes 12`.

Each is a process of its own, so that memory is given back in between. They write texts.npz, texts_held_out.npz, head/
and evaluation.json into the folder.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from pathlib import Path

WRITING = 0.28  # of the time
OTHER = 1.5  # minutes: three starts, held-out texts, evaluation
SMOKE = {
    "write_texts": "--prompts 8 --held-out 2 --length 96 --max-tokens 16",
    "train": "--steps 2 --lines 2 --length 96 --drafts 2 --vocabulary 512",
    "evaluate": "--length 96",
}


def steps(out: Path, minutes: float, model: str) -> dict[str, str]:
    """What each module is called with."""
    texts, held_out, head = out / "texts.npz", out / "texts_held_out.npz", out / "head"
    writing = WRITING * minutes
    learning = max(0.1, minutes - writing - OTHER)
    return {
        "write_texts": f"--model {model} --out {texts} --minutes {writing:.2f}",
        "train": f"--model {model} --texts {texts} --out {head} --minutes {learning:.2f}",
        "evaluate": f"--model {model} --head {head} --texts {held_out} --out {out / 'evaluation.json'}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--minutes", type=float, default=12.0, help="for all")
    parser.add_argument("--smoke", action="store_true", help="tiny sizes: see that all of it runs")
    for name in SMOKE:
        parser.add_argument(f"--{name.replace('_', '-')}", default="", metavar="FLAGS", help=f"further ones of {name}")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    for name, flags in steps(args.out, args.minutes, args.model).items():
        words = [*flags.split(), *(SMOKE[name].split() if args.smoke else ()), *getattr(args, name).split()]
        began = time.monotonic()
        print(f"-- training.{name} {' '.join(words)}", flush=True)
        subprocess.run([sys.executable, "-m", f"training.{name}", *words], check=True)
        print(f"-- {time.monotonic() - began:.0f} s", flush=True)


if __name__ == "__main__":
    main()
