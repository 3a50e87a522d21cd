"""Import what probes import, so that the interpreter leaves its bytecode in the torch base.

Runs in a throwaway container over the packages folder. It is also the first proof that real
SGLang imports there: any failure stops the making of the base.
"""

import importlib
import sys
from importlib.machinery import ModuleSpec
from types import ModuleType

# The rotary code imports this when there is no CUDA; real probes put a stub there too.
for name in ("vllm", "vllm._custom_ops"):
    stub = ModuleType(name)
    stub.__path__, stub.__spec__ = [], ModuleSpec(name, None)
    sys.modules[name] = stub

for name in (
    "torchvision",
    "sglang.srt.models.dflash",
    "sglang.srt.models.registry",
    "sglang.srt.speculative.dflash_worker_v2",
    "sglang.srt.server_args",
):
    importlib.import_module(name)
