"""Features on the device, a package each: the device's half of it, a `DeviceFeature` with its tables and hooks.
`runner/features/setup.py` lists them, and nothing else in the runner imports them."""
