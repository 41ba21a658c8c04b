"""The device half of every feature, a package each: a `DeviceFeature` with its tables and hooks.

`runner/features/setup.py` lists them, and nothing else in the runner imports them. Imports `runner`, and what the
features need: `speculate`, `sample`, `lora`.
"""
