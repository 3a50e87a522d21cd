"""Loaders of every habit, for the probe's two trackers. Runs inside the torch base, behind the probe's own source.

Each class has parameters `a` (2 x 2) and `b` (4 x 2) and is given tensors `a`, `b` and `c`.
"""

import json
import sys
import types

import torch
from torch import nn

weights = types.ModuleType("toy.srt.model_loader.weight_utils")


def default_weight_loader(param, loaded_weight):
    assert param.size() == loaded_weight.size()
    param.data.copy_(loaded_weight)


weights.default_weight_loader = default_weight_loader
for name in ("toy", "toy.srt", "toy.srt.model_loader"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = []
sys.modules[weights.__name__] = weights


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Parameter(torch.empty(2, 2))
        self.b = nn.Parameter(torch.empty(4, 2))

    def load(self, parameter, tensor, *rest):
        getattr(parameter, "weight_loader", weights.default_weight_loader)(parameter, tensor, *rest)


class SkipsUnknownNames(Model):
    def load_weights(self, pairs):
        parameters = dict(self.named_parameters())
        for name, tensor in pairs:
            if name in parameters:
                self.load(parameters[name], tensor)


class CollectsFirst(Model):
    def load_weights(self, pairs):
        pairs = dict(pairs)
        self.load(self.b, pairs["b"])
        self.load(self.a, pairs["a"])


class FillsHalf(Model):
    def __init__(self):
        super().__init__()
        self.b.weight_loader = lambda parameter, tensor, half: parameter.data.narrow(0, 2 * half, 2).copy_(tensor[:2])

    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "b":
                self.load(self.b, tensor, 1)


class CopiesBehindTheLoadersBack(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "a":
                self.a.data[:] = tensor
            elif name == "b":
                self.load(self.b, tensor)


class TakesTheMemory(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "a":
                self.load(self.a, tensor)
            elif name == "b":
                self.b.data = tensor


class LoadsAndDropsIt(Model):
    def __init__(self):
        super().__init__()
        self.a.weight_loader = lambda parameter, tensor: None

    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "a":
                self.load(self.a, tensor)


class KeepsAnIndex(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "c":
                self.index = tensor + torch.arange(tensor.shape[0]).view(-1, 1)
            elif name in ("a", "b"):
                self.load(dict(self.named_parameters())[name], tensor)


class FillsByValue(Model):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1))

    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "one":
                self.scale.data.fill_(tensor.item())


class JoinsTwo(Model):
    def load_weights(self, pairs):
        pairs = dict(pairs)
        self.load(self.b, torch.cat([pairs["a"], pairs["c"]]))


class IsAGenerator(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "a":
                self.load(self.a, tensor)
                yield name


class Refuses(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "b":
                raise ValueError("b is not for me")
            self.load(self.a, tensor)


class WantsBytes(Model):
    def load_weights(self, pairs):
        for _, tensor in pairs:
            tensor.tolist()


class Twice(Model):
    def load_weights(self, pairs):
        for name, tensor in pairs:
            if name == "a":
                self.load(self.a, tensor)
                self.load(self.a, tensor)


answers = {}
for case in Model.__subclasses__():
    with torch.device("meta"):
        _built["model"] = case()  # noqa: F821 - the probe's own
    tensors = [["a", "BF16", [2, 2]], ["b", "F32", [4, 2]], ["c", "F32", [2, 2]], ["one", "F32", [1]]]
    answers[case.__name__] = _weights("toy", {"tensors": tensors})  # noqa: F821
print("ANSWERS " + json.dumps(answers))
