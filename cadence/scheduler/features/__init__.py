"""Features beside the scheduler, a package each: the host's half of it, a `HostFeature`. `engine/build.py` lists them,
and nothing else in the scheduler imports them."""
