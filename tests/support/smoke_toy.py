"""A package in the shape of SGLang: a registry that swallows import errors, models, a worker that imports one."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from builder.checkpoint import PublishedDraft

REGISTRY = """
import importlib
import pkgutil


class _Registry:
    def __init__(self):
        self.models = {}
        package = importlib.import_module("toy.srt.models")
        for _, name, _ in pkgutil.iter_modules(package.__path__, package.__name__ + "."):
            if name != __name__:
                self._load(name)

    def _load(self, name):
        try:
            module = importlib.import_module(name)
        except Exception:
            return
        for entry in getattr(module, "EntryClass", []):
            self.models[entry.__name__] = entry

    def get_supported_archs(self):
        return self.models.keys()

    def resolve_model_cls(self, architectures):
        for architecture in [*architectures, "Fallback"]:
            if architecture in self.models:
                return self.models[architecture], architecture
        raise ValueError("no class")


ModelRegistry = _Registry()
"""

MODEL = "class {name}:\n    pass\n\n\nEntryClass = [{name}]\n"

BASE: Mapping[str, str] = {
    "toy/__init__.py": "",
    "toy/srt/models/registry.py": REGISTRY,
    "toy/srt/models/fallback.py": MODEL.format(name="Fallback"),
    "toy/srt/models/draft.py": MODEL.format(name="DraftV1"),
    "toy/srt/helpers.py": "def old():\n    pass\n",
    "toy/srt/worker.py": "from toy.srt.helpers import old\n",
    "toy/srt/worker_v2.py": "from .helpers import old\n",
}

NEW_MODEL = "class DraftV1:\n    pass\n\n\nclass DraftV2:\n    pass\n\n\nEntryClass = [DraftV1, DraftV2]\n"


def draft(architecture: str = "DraftV2", **config: Any) -> PublishedDraft:
    """Return a published table of one tensor."""
    return PublishedDraft("org/draft", {"architectures": [architecture], **config}, {"w": ("BF16", (2, 2))})
