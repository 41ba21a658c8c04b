"""The host half of every feature, a package each: a `HostFeature` (`scheduler/feature.py`).

`engine/build.py` lists them, and nothing else in the scheduler imports them. Imports core and `scheduler`.
"""
