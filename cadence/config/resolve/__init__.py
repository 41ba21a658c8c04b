"""From options, a model's files and a device to the one `EngineConfig` (`resolve`), and what it decides on the way: the
type of numbers (`dtypes`), of weights (`quantization`), and what a model that sees both ways does without
(`both_ways`). Imports `config`; `engine` imports it."""
