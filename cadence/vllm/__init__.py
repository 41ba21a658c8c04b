"""The names of vLLM, for scripts that say `import vllm`.

`python -m cadence.vllm script.py` runs such a script as it is. Its modules are made from a table, `names.py`: each name
leads to the class or function of Cadence that does the work, and is imported when first used.
"""

from cadence.vllm.modules import install, open_module

install("cadence.vllm")
open_module(globals(), "")
