"""What the memory and the matrix units of a machine allow at most, from bytes and operations alone."""

from __future__ import annotations

from dataclasses import dataclass

from benchmarks.shapes import SHAPES, weight_bytes_per_token


@dataclass(frozen=True, slots=True)
class Machine:
    bytes_per_second: float  # reading device memory
    flops: float  # bfloat16 matrix products, large ones

    def prefill_seconds(self, shape: str, lengths: list[int]) -> float:
        """Prompts computed in as few steps as one likes: weights are read once, everything else is arithmetic."""
        return max(sum(_prompt_flops(shape, length) for length in lengths) / self.flops, self._weights(shape))

    def decode_seconds(self, shape: str, lengths: list[int]) -> float:
        """One token for each of the sequences, which hold so many tokens."""
        keys = sum(lengths) * kv_bytes_per_token(shape) / self.bytes_per_second
        products = len(lengths) * weight_bytes_per_token(shape) / self.flops  # 2 bytes and 2 operations a weight
        return keys + max(self._weights(shape), products)

    def request_seconds(self, shape: str, work: list[tuple[int, int]], rows: int) -> float:
        """All prompts, then decodes with `rows` requests running as long as there are enough left."""
        total = self.prefill_seconds(shape, [length for length, _ in work])
        waiting = [(length, out - 1) for length, out in work][::-1]  # the prefill yields the first token
        running: list[tuple[int, int]] = []
        while waiting or running:
            while waiting and len(running) < rows:
                running.append(waiting.pop())
            running = [(length, left) for length, left in running if left > 0]
            steps = min((left for _, left in running), default=0)
            if steps:
                middle = [length + steps // 2 for length, _ in running]
                total += steps * self.decode_seconds(shape, middle)
                running = [(length + steps, left - steps) for length, left in running]
        return total

    def _weights(self, shape: str) -> float:
        return weight_bytes_per_token(shape) / self.bytes_per_second


def kv_bytes_per_token(name: str, element_bytes: int = 2) -> int:
    shape = SHAPES[name]
    return 2 * element_bytes * shape["num_hidden_layers"] * shape["num_key_value_heads"] * shape["head_dim"]


def _prompt_flops(name: str, length: int) -> float:
    """The head is applied to the last token only."""
    shape = SHAPES[name]
    head = shape["hidden_size"] * shape["vocab_size"]
    layers = weight_bytes_per_token(name) / 2 - head
    attention = 2 * shape["num_hidden_layers"] * shape["num_attention_heads"] * shape["head_dim"] * length**2
    return 2 * layers * length + attention + 2 * head
