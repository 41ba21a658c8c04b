"""Who computes how many tokens in the next step. No torch, no clock, no feature by name.

`scheduler` orchestrates: `queue` and `admission` let requests in, `advance` gives running ones their tokens,
`extension` and `burst` add forwards, `preempt` frees blocks, `plan` writes it down, `update` reconciles results,
`retiring` frees rows. `rows` has the counters. `pace`, `prompt_cost` and `decode_times` keep prompts within the time
between two tokens; `turns` deals rows out to steps where a model has stages. Imports core, config and its own `kv`;
`engine` imports it.
"""
