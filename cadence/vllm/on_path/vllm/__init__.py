"""What `import vllm` finds when the folder above is on PYTHONPATH: the names of `cadence.vllm`.

It must be importable by any interpreter of the same environment, also where Cadence itself is not on the path.
"""

import sys
from importlib.util import find_spec
from pathlib import Path

if find_spec("cadence") is None:
    sys.path.append(str(Path(__file__).resolve().parents[4]))

from cadence.vllm.modules import install, open_module

install("vllm")
open_module(globals(), "")
