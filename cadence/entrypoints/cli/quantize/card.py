"""README.md of a quantised checkpoint: what it was made of, how, and what that costs."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from cadence.config.version import __version__


@dataclass(frozen=True, slots=True)
class Card:
    base: str  # what it was made of
    format: str
    group: int  # columns that share a scale; 0 = as the format has it
    calibrated: str  # with which text; "" = not
    nbytes: int
    left_out: tuple[str, ...]
    perplexity: tuple[float, float] | None = None  # of the original, of this
    measured_on: str = ""

    def text(self) -> str:
        shown = list(self.left_out[:4]) + (["…"] if len(self.left_out) > 4 else [])
        facts = [
            f"* format: {self.format}" + (f", groups of {self.group} columns" if self.group else ""),
            f"* calibrated with: {self.calibrated or 'nothing, every weight is rounded by itself'}",
            f"* not quantised: {', '.join(shown)}, embeddings and norms",
            f"* tensors: {self.nbytes / 1e6:.1f} MB",
        ]
        head = ["---", "tags:", "- compressed-tensors", "---", "", f"# {Path(self.base).name}, {self.format}", ""]
        made = [f"Made of `{Path(self.base).name}` by `cadence quantize` {__version__}.", ""]
        return "\n".join([*head, *made, *facts, "", *self._measured()])

    def _measured(self) -> list[str]:
        if self.perplexity is None:
            return ["Its perplexity was not measured.", ""]
        before, after = self.perplexity
        return [
            f"Perplexity of its values on {self.measured_on} (lower is better):",
            "",
            "| | perplexity | |",
            "|---|---|---|",
            f"| original | {before:.3f} | |",
            f"| this | {after:.3f} | {after / before - 1:+.2%} |",
            "",
        ]

    def write(self, folder: Path) -> None:
        """In place of an older one, at once."""
        part = folder / "README.md.part"
        part.write_text(self.text(), encoding="utf-8")
        os.replace(part, folder / "README.md")
