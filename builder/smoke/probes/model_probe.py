"""Ask an image's own interpreter what it imports, which class it resolves, and which weights that class loads.

Runs inside the container with nothing but the standard library and what the image has. The request is one JSON object
on stdin; answers go to stdout, one JSON object a line, each behind the request's nonce, as soon as they are known, so
that a crash hides only what comes after it. Everything else that the image prints goes to stderr.

Request: {nonce, package, live_root, modules: [name], registry: bool, model: null | {architectures, config,
whole_config: bool, tensors: [[name, dtype, shape]], tp}}. Answers carry "step": interpreter, module, registry, class,
weights, end.
"""

from __future__ import annotations

import contextlib
import functools
import gc
import hashlib
import importlib
import importlib.machinery
import importlib.util
import inspect
import json
import logging
import os
import resource
import sys
import tempfile
import time
import traceback
import types
from typing import Any

#: The package's own folder with a slash at its end, once it is known; it tells whose code raised an error.
_folder = "/"


def main() -> None:
    """Answer one request."""
    global _folder
    # Imports make millions of objects that all stay; collecting among them costs a tenth of the time and frees nothing.
    gc.disable()
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    request = json.loads(sys.stdin.buffer.read())

    def answer(step: str, **facts: Any) -> None:
        # A line of its own whatever stood there before; ASCII, so that no locale can spoil it.
        answers.write("\n" + request["nonce"] + " " + json.dumps({"step": step, **facts}) + "\n")
        answers.flush()

    package, root = request["package"], os.path.realpath(request["live_root"])
    found = _prefer(package, root)
    _folder = f"{found or root}/{package}/"
    answer("interpreter", version=sys.version.split()[0], live_root=root, package_root=found, **_torch())
    _import_all(request["modules"], package, answer)
    if request["registry"]:
        _guarded("registry", answer, _registry, package, request["model"])
    if request["model"]:
        _guarded("class", answer, _class, package, request["model"])
        _guarded("weights", answer, _weights, package, request["model"])
    answer("end", seconds=round(time.process_time(), 3), peak_kilobytes=_peak_kilobytes())


def _guarded(step: str, answer: Any, ask: Any, *arguments: Any) -> None:
    """Answer one step; whatever it raises is its answer and ends nothing else."""
    started, memory = time.perf_counter(), _peak_kilobytes()
    try:
        facts = ask(*arguments)
    except BaseException as error:
        facts = {"error": _described(error)}
    spent = round(time.perf_counter() - started, 3)
    answer(step, **facts, seconds=spent, grown_kilobytes=_peak_kilobytes() - memory)


def _peak_kilobytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _described(error: BaseException) -> dict[str, Any]:
    """Describe an error: type, message, the module or name it missed, and the innermost frame of the package."""
    frames = traceback.extract_tb(error.__traceback__)
    inside = [f for f in frames if os.path.isabs(f.filename) and os.path.realpath(f.filename).startswith(_folder)]
    last = inside[-1] if inside else (frames[-1] if frames else None)
    return {
        "type": type(error).__name__,
        "message": str(error)[:1000],
        "missing": getattr(error, "name", None) if isinstance(error, ImportError) else None,
        "at": f"{last.filename}:{last.lineno}" if last else None,
        # The loader's own explicit refusal, as against something that only fails without weights or a GPU.
        "raised_by_package": bool(inside) and inside[-1] is frames[-1],
    }


def _torch() -> dict[str, Any]:
    """Say which torch there is and whether it sees a GPU."""
    try:
        torch = importlib.import_module("torch")
        return {"torch": torch.__version__, "cuda": bool(torch.cuda.is_available())}
    except BaseException as error:
        return {"torch": None, "cuda": None, "torch_error": f"{type(error).__name__}: {error}"[:500]}


# -- imports ---------------------------------------------------------------------------------------------------------


def _prefer(package: str, root: str) -> str | None:
    """Start as a server of this live root does, and return where the package then comes from.

    A console script does not look into the working directory, where a checkout's namespace folder may shadow an
    editable install; `python -m` does, and a live root in the working directory is reached in that way only. Nothing
    else is put on the path: a root that the interpreter would not take has to show.
    """
    if sys.path and sys.path[0] in ("", os.getcwd()):
        del sys.path[0]
    found = _package_root(package)
    if found != root and root == os.path.realpath(os.getcwd()):
        sys.path.insert(0, root)
        importlib.invalidate_caches()
        found = _package_root(package)
    return found


def _package_root(package: str) -> str | None:
    spec = _locate(package)
    places = list(spec.submodule_search_locations or ()) if spec else []
    return os.path.dirname(os.path.realpath(places[0])) if places else None


def _locate(name: str) -> Any:
    """Find a module as the interpreter would, without importing its parents."""
    path: Any = None
    spec = None
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        partial = ".".join(parts[:count])
        specs = (finder.find_spec(partial, path) for finder in sys.meta_path if hasattr(finder, "find_spec"))
        spec = next((found for found in specs if found is not None), None)
        if spec is None:
            return None
        path = spec.submodule_search_locations
    return spec


def _import_all(names: list[str], package: str, answer: Any) -> None:
    """Import each module in turn; one that failed gets a second try once the others are there.

    The second try tells a circular import, which depends on where one starts, from a module that cannot be imported.
    """
    failed: dict[str, dict[str, Any]] = {}
    for name in names:
        error = _import(name)
        if error is None:
            answer("module", module=name, error=None, **_source(name))
        else:
            failed[name] = error
    _broken.clear()
    for name, error in failed.items():
        is_absent_elsewhere = error["missing"] and not error["missing"].startswith(package)
        again = error if is_absent_elsewhere else _import(name)
        answer("module", module=name, error=None if again is None else error, **_source(name))


#: Modules that did not import, and why: nothing below a broken package is tried, nothing runs twice for its error.
_broken: dict[str, dict[str, Any]] = {}


def _import(name: str) -> dict[str, Any] | None:
    parts = name.split(".")
    for count in range(1, len(parts) + 1):
        partial = ".".join(parts[:count])
        if partial not in _broken:
            try:
                importlib.import_module(partial)
                continue
            except BaseException as error:
                _broken[partial] = _described(error)
        return _broken[partial]
    return None


def _source(name: str) -> dict[str, Any]:
    """Say which file the interpreter takes for a module, its git blob id, and whether old bytecode hides it."""
    try:
        # A package may have changed its path when it was imported, so a module that is there knows best.
        spec = getattr(sys.modules.get(name), "__spec__", None) or _locate(name)
        if spec is None or not spec.origin or not os.path.isfile(spec.origin):
            return {"file": None, "blob": None, "stale": None}
        with open(spec.origin, "rb") as file:
            data = file.read()
        blob = hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()
        return {"file": os.path.realpath(spec.origin), "blob": blob, "stale": _is_stale(spec, data)}
    except Exception as error:
        return {"file": None, "blob": None, "stale": None, "source_error": f"{type(error).__name__}: {error}"}


def _is_stale(spec: Any, data: bytes) -> bool | None:
    if not spec.cached or not os.path.isfile(spec.cached) or not hasattr(spec.loader, "get_code"):
        return False
    try:
        return bool(spec.loader.get_code(spec.name) != compile(data, spec.origin, "exec", dont_inherit=True))
    except SyntaxError:
        return None


# -- registry --------------------------------------------------------------------------------------------------------


def _registry(package: str, model: dict[str, Any] | None) -> dict[str, Any]:
    """Resolve the architectures as the server would, and list the model modules whose import it swallowed."""
    broken = _import(f"{package}.srt.models.registry")
    if broken is not None:
        return {"error": broken}
    registry = sys.modules[f"{package}.srt.models.registry"]
    swallowed: dict[str, str] = {}
    models = importlib.import_module(f"{package}.srt.models")
    known = registry.ModelRegistry.get_supported_archs()
    for path in models.__path__:
        for entry in sorted(os.listdir(path)):
            name = f"{models.__name__}.{entry[:-3]}"
            if entry.endswith(".py") and name not in sys.modules and entry != "__init__.py":
                error = _import(name)
                swallowed[name] = f"{error['type']}: {error['message']}"[:500] if error else "imported only later"
    facts: dict[str, Any] = {"swallowed": swallowed, "known": len(known)}
    if model and model["architectures"]:
        cls, architecture = registry.ModelRegistry.resolve_model_cls(model["architectures"])
        facts.update(
            architecture=architecture,
            registered=[name for name in model["architectures"] if name in known],
            cls=cls.__name__,
            module=cls.__module__,
            file=os.path.realpath(inspect.getfile(cls)),
        )
    return facts


# -- the model class and its loader ----------------------------------------------------------------------------------

_built: dict[str, Any] = {}


def _class(package: str, model: dict[str, Any]) -> dict[str, Any]:
    """Build the class on the meta device, as the server's loader would, for rank 0."""
    broken = _import("torch") or _import(f"{package}.srt.models.registry")
    if broken is not None:
        return {"error": broken, "cls": None}
    torch, registry = sys.modules["torch"], sys.modules[f"{package}.srt.models.registry"]
    cls, architecture = registry.ModelRegistry.resolve_model_cls(model["architectures"])
    if architecture not in model["architectures"]:
        return {"error": None, "cls": None, "reason": f"the registry answers {architecture} instead"}
    notes = _publish(package, model["tp"])
    config, config_by = _config(package, model["config"], is_whole=model["whole_config"])
    notes += _stub_cuda_only_modules(torch)
    before = torch.get_default_dtype()
    torch.set_default_dtype(_dtype(torch, model["config"]))
    try:
        with torch.device("meta"):
            built = cls(config=config, **_quantization(package, cls, model["config"]))
    finally:
        torch.set_default_dtype(before)
    _built["model"] = built
    return {
        "error": None,
        "cls": cls.__name__,
        "config_by": config_by,
        "notes": notes,
        "parameters": {name: [str(p.dtype)[6:], list(p.shape)] for name, p in built.named_parameters()},
        "attention": _attention(built),
    }


def _attention(built: Any) -> list[dict[str, Any]]:
    """List what each attention layer was built as: causal or not, window."""
    found = []
    for name, module in built.named_modules():
        kind = getattr(module, "attn_type", None)
        if kind is not None and hasattr(module, "layer_id"):
            window = getattr(module, "sliding_window_size", None)
            found.append({"name": name, "type": str(getattr(kind, "value", kind)), "window": window})
    return found


def _publish(package: str, tp: int) -> list[str]:
    """Give the process what a scheduler has before it builds a model: server arguments and parallel sizes."""
    notes = []
    server_args = importlib.import_module(f"{package}.srt.server_args")
    arguments = server_args.ServerArgs(model_path="dummy")
    try:
        context = importlib.import_module(f"{package}.srt.runtime_context")
    except ImportError:
        server_args.set_global_server_args_for_scheduler(arguments)
        notes.append("no runtime_context")
    else:
        if hasattr(context, "publish"):
            context.publish(arguments, role="test")
        else:
            context.get_context().set_server_args(arguments)
        parallel = context.get_parallel()
        sizes = _parallel_values(context, parallel, tp)
        _built["parallel"] = parallel.override(**sizes)
        _built["parallel"].__enter__()
    _set_groups(package, tp)
    return notes


def _parallel_values(context: Any, parallel: Any, tp: int) -> dict[str, Any]:
    """Return a value for every size, rank and switch of the topology: one machine, `tp` ranks, this one the first."""
    fields = getattr(context, "_PARALLEL_FIELDS", None) or getattr(context, "_parallel_fields", set)()
    values: dict[str, Any] = {}
    for name in fields or (name for name in dir(type(parallel)) if name.endswith(("_size", "_rank"))):
        if name.endswith("_size"):
            values[name] = tp if name in ("tp_size", "attn_tp_size", "moe_tp_size", "world_size") else 1
        elif name.endswith("_rank"):
            values[name] = 0
        elif name.endswith("_enabled"):
            values[name] = False
        elif name.endswith("_group"):
            values[name] = Group(tp if "tp" in name or "world" in name else 1)
    return values


class Group:
    """A process group of which only size and rank are ever asked."""

    def __init__(self, world_size: int) -> None:
        self.world_size = world_size
        self.rank = self.rank_in_group = self.local_rank = 0
        self.ranks = list(range(world_size))
        self.is_first_rank = True
        self.is_last_rank = True
        self.device_group = self.cpu_group = None


def _set_groups(package: str, tp: int) -> None:
    """Fill the groups that nobody initialised, for models that ask for them directly."""
    try:
        state = importlib.import_module(f"{package}.srt.distributed.parallel_state")
    except ImportError:
        return
    for name in ("_WORLD", "_TP", "_ATTN_TP", "_MOE_TP", "_PP", "_MOE_EP", "_MOE_DP", "_ATTN_CP", "_DCP"):
        if getattr(state, name, ...) is None:
            setattr(state, name, Group(tp if "TP" in name or name == "_WORLD" else 1))


def _config(package: str, fields: dict[str, Any], *, is_whole: bool) -> tuple[Any, str]:
    """Read the config as the server would; a part of one, or one that needs remote code, as a plain config object."""
    plain = importlib.import_module("transformers").PretrainedConfig
    if not is_whole:
        return plain.from_dict(fields), "a plain config object"
    with tempfile.TemporaryDirectory() as folder:
        with open(os.path.join(folder, "config.json"), "w", encoding="utf-8") as file:
            json.dump(fields, file)
        try:
            reader = importlib.import_module(f"{package}.srt.utils.hf_transformers_utils")
            return reader.get_config(folder, trust_remote_code=False), "the package's own reader"
        except Exception as error:
            return plain.from_dict(fields), f"a plain config object ({type(error).__name__}: {error})"[:300]


def _dtype(torch: Any, config: dict[str, Any]) -> Any:
    named = config.get("dtype") or config.get("torch_dtype") or "bfloat16"
    found = getattr(torch, str(named).replace("torch.", ""), None)
    return found if isinstance(found, torch.dtype) and found.is_floating_point else torch.bfloat16


def _quantization(package: str, cls: Any, config: dict[str, Any]) -> dict[str, Any]:
    """Return the class's quant_config argument, from the checkpoint's own description where it has one."""
    takes = inspect.signature(cls.__init__).parameters
    if "quant_config" not in takes and not any(p.kind is p.VAR_KEYWORD for p in takes.values()):
        return {}
    described = config.get("quantization_config")
    if not described:
        return {"quant_config": None}
    quantization = importlib.import_module(f"{package}.srt.layers.quantization")
    found = quantization.get_quantization_config(described["quant_method"]).from_config(described)
    found.packed_modules_mapping = getattr(cls, "packed_modules_mapping", {})
    return {"quant_config": found}


def _stub_cuda_only_modules(torch: Any) -> list[str]:
    """Put inert modules where the package takes kernels from that only a CUDA build has.

    Without CUDA the rotary code imports `vllm._custom_ops`; nothing in it is called while weights are loaded.
    """
    if torch.cuda.is_available():
        return []
    try:
        if importlib.util.find_spec("vllm") is not None:
            return []
    except (ImportError, ValueError):
        return []
    for name in ("vllm", "vllm._custom_ops"):
        module: Any = types.ModuleType(name, "A stub: there is no CUDA here.")
        module.__spec__ = importlib.machinery.ModuleSpec(name, None, is_package=name == "vllm")
        module.__path__ = []
        sys.modules[name] = module
        module.__getattr__ = _inert
    setattr(sys.modules["vllm"], "_custom_ops", sys.modules["vllm._custom_ops"])  # noqa: B010
    return ["vllm._custom_ops is a stub, there is no CUDA"]


def _inert(name: str) -> Any:
    if name.startswith("__"):
        raise AttributeError(name)
    return lambda *_, **__: None


def _weights(package: str, model: dict[str, Any]) -> dict[str, Any]:
    """Feed `load_weights` tensors without bytes and follow them in two ways that know nothing of each other."""
    built = _built.get("model")
    if built is None:
        return {"error": None, "reason": "the class was not built"}
    torch = importlib.import_module("torch")
    given = _given(torch, model["tensors"])
    loaders, copies = Loaders(package, built, given), Copies(torch, built, given)
    error = None
    # What a loader makes by itself, an index or an offset, has to live where the tensors do.
    with torch.device("meta"), torch.no_grad(), loaders, copies:
        try:
            result = built.load_weights((name, tensor) for name, tensor in loaders.yielded())
            if inspect.isgenerator(result):
                list(result)
        except BaseException as raised:
            error = {**_described(raised), "tensor": loaders.current}
    copies.adopt()
    return {
        "error": error,
        "method": "meta device, two trackers",
        "by_loader": sorted(loaders.consumed),
        "by_copy": sorted(copies.consumed),
        "kept": _kept(torch, built),
        "read": loaders.count,
        "filled": copies.filled(),
        "cast": copies.cast,
        "repeated": sorted(name for name, count in copies.times.items() if count > 1),
    }


def _kept(torch: Any, built: Any) -> list[str]:
    """Name the tensors from which the model made something that it keeps beside its parameters."""
    traced = _traced_class(torch)
    held = (value for module in built.modules() for value in _flat(vars(module)))
    return sorted(frozenset().union(*(value.sources for value in held if isinstance(value, traced))))


_DTYPES = {
    "BOOL": "bool", "U8": "uint8", "I8": "int8", "U16": "uint16", "I16": "int16", "U32": "uint32", "I32": "int32",
    "U64": "uint64", "I64": "int64", "F16": "float16", "BF16": "bfloat16", "F32": "float32", "F64": "float64",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "F8_E8M0": "float8_e8m0fnu", "C64": "complex64",
    "F8_E4M3FNUZ": "float8_e4m3fnuz", "F8_E5M2FNUZ": "float8_e5m2fnuz", "F4": "float4_e2m1fn_x2",
}  # fmt: skip


def _given(torch: Any, tensors: list[Any]) -> dict[str, Any]:
    """Make each tensor of the checkpoint: right name, dtype and shape, no bytes."""
    traced = _traced_class(torch)
    given = {}
    for name, dtype, shape in tensors:
        plain = torch.empty(shape, dtype=getattr(torch, _DTYPES[dtype]), device="meta")
        tensor = plain.as_subclass(traced)
        tensor.sources = frozenset([name])
        given[name] = tensor
    return given


_on_write: list[Any] = []


@functools.lru_cache(maxsize=1)
def _traced_class(torch: Any) -> Any:
    """Make the tensor class whose results remember which checkpoint tensors they come from."""

    class Traced(torch.Tensor):  # type: ignore[misc]
        sources: frozenset[str] = frozenset()

        @classmethod
        def __torch_function__(cls, func: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
            named = named or {}
            sources = frozenset().union(*(t.sources for t in _flat((arguments, named)) if isinstance(t, Traced)))
            if getattr(func, "__name__", "") == "item":
                # The value is not there; zero does, and the write that follows is told where it came from.
                for see in _on_write:
                    see.value_of(sources)
                return 0
            with torch._C.DisableTorchFunctionSubclass():
                result = func(*arguments, **named)
            target = _written(func, arguments, named)
            if target is not None:
                for see in _on_write:
                    see.wrote(target, sources, arguments)
                return result
            return _trace(result, sources)

    def _trace(result: Any, sources: frozenset[str]) -> Any:
        if isinstance(result, torch.Tensor):
            traced = result if isinstance(result, Traced) else result.as_subclass(Traced)
            traced.sources = sources
            return traced
        if isinstance(result, (list, tuple)) and any(isinstance(part, torch.Tensor) for part in result):
            return type(result)([_trace(part, sources) for part in result])
        return result

    return Traced


def _flat(value: Any) -> Any:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, (list, tuple)):
        for part in value:
            yield from _flat(part)
    else:
        yield value


def _written(func: Any, arguments: Any, named: Any) -> Any:
    """Return the tensor a torch function writes into, None if it only reads."""
    name = getattr(func, "__name__", "")
    if named.get("out") is not None:
        return named["out"]
    in_place = name == "__setitem__" or (name.endswith("_") and not name.endswith("__"))
    return arguments[0] if in_place and arguments else None


class Loaders:
    """The first tracker: every parameter's `weight_loader`, and which tensor it was handed."""

    def __init__(self, package: str, built: Any, given: dict[str, Any]) -> None:
        self.built, self.given = built, given
        self.names = {id(tensor): name for name, tensor in given.items()}
        self.consumed: set[str] = set()
        self.current: str | None = None
        self.count = 0
        self.utilities = importlib.import_module(f"{package}.srt.model_loader.weight_utils")
        self.package = package

    def yielded(self) -> Any:
        """Hand out the tensors one by one, and remember which is in the loader's hands."""
        for name, tensor in self.given.items():
            self.current, self.count = name, self.count + 1
            yield name, tensor
        self.current = None

    def __enter__(self) -> Loaders:
        default = self.utilities.default_weight_loader
        recorded = self._recorded(default)
        for name, module in list(sys.modules.items()):
            if name.startswith(self.package) and vars(module).get("default_weight_loader") is default:
                module.default_weight_loader = recorded  # type: ignore[attr-defined, unused-ignore]
        for parameter in self.built.parameters():
            loader = getattr(parameter, "weight_loader", None)
            if loader is not None:
                self._replace(parameter, self._recorded(loader))
        return self

    def __exit__(self, *raised: Any) -> None:
        """Leave everything wrapped: the process ends soon."""

    @staticmethod
    def _replace(parameter: Any, loader: Any) -> None:
        try:
            parameter.weight_loader = loader
        except AttributeError:
            parameter._weight_loader = loader

    def _recorded(self, loader: Any) -> Any:
        @functools.wraps(loader)
        def record(*arguments: Any, **named: Any) -> Any:
            tensors = [t for t in _flat((arguments, named)) if id(t) in self.names]
            handed = {self.names[id(tensor)] for tensor in tensors}
            if not handed and self.current is not None:
                handed = {self.current}
            result = loader(*arguments, **named)
            self.consumed |= handed
            return result

        return record


class Copies:
    """The second tracker: every write into memory that a parameter owns, and what was written."""

    def __init__(self, torch: Any, built: Any, given: dict[str, Any]) -> None:
        self.torch, self.built, self.given = torch, built, given
        self.consumed: set[str] = set()
        self.times: dict[str, int] = {}
        self.cast: list[list[str]] = []
        self.spans: dict[str, list[tuple[int, int]]] = {}
        self.owners: dict[int, str] = {}
        for name, parameter in built.named_parameters():
            self.owners.setdefault(self._memory(parameter), name)
        self.value: frozenset[str] = frozenset()

    @staticmethod
    def _memory(tensor: Any) -> int:
        return int(tensor.untyped_storage()._cdata)

    def __enter__(self) -> Copies:
        _on_write.append(self)
        self.fills = _fill_mode(self)
        self.fills.__enter__()
        return self

    def __exit__(self, *raised: Any) -> None:
        self.fills.__exit__(None, None, None)
        _on_write.remove(self)

    def value_of(self, sources: frozenset[str]) -> None:
        self.value = sources

    def filled_by_value(self, target: Any) -> None:
        self.wrote(target, self.value, ())
        self.value = frozenset()

    def wrote(self, target: Any, sources: frozenset[str], arguments: Any) -> None:
        owner = self.owners.get(self._memory(target))
        if owner is None or not sources:
            return
        self.consumed |= sources
        for name in sources:
            self.times[name] = self.times.get(name, 0) + 1
        values = [t for t in arguments[1:] if isinstance(t, self.torch.Tensor)]
        if values and values[-1].dtype != target.dtype:
            self.cast += [[name, str(values[-1].dtype)[6:], str(target.dtype)[6:]] for name in sorted(sources)]
        begin = int(target.storage_offset())
        self.spans.setdefault(owner, []).append((begin, begin + int(target.numel())))

    def adopt(self) -> None:
        """Count a parameter that took a checkpoint tensor's memory over instead of copying it."""
        memories = {self._memory(tensor): name for name, tensor in self.given.items()}
        for name, parameter in self.built.named_parameters():
            source = memories.get(self._memory(parameter))
            if source is not None:
                self.consumed.add(source)
                self.spans.setdefault(name, []).append((0, int(parameter.numel())))

    def filled(self) -> dict[str, list[int]]:
        """Return for each parameter how many of its elements were written, and how many it has."""
        shared = {name: self.owners.get(self._memory(p), name) for name, p in self.built.named_parameters()}
        sizes = {name: int(parameter.numel()) for name, parameter in self.built.named_parameters()}
        return {name: [_covered(self.spans.get(shared[name], [])), size] for name, size in sizes.items()}


def _covered(spans: list[tuple[int, int]]) -> int:
    """Return how many places a list of spans covers, each counted once."""
    total, reached = 0, 0
    for begin, end in sorted(spans):
        total += max(0, end - max(begin, reached))
        reached = max(reached, end)
    return total


def _fill_mode(copies: Copies) -> Any:
    """Watch for a scalar put into a parameter by value, which no tensor class can see."""
    mode: Any = importlib.import_module("torch.overrides").TorchFunctionMode

    class Fills(mode):  # type: ignore[misc]
        def __torch_function__(self, func: Any, kinds: Any, arguments: Any = (), named: Any = None) -> Any:
            result = func(*arguments, **(named or {}))
            if copies.value and getattr(func, "__name__", "") == "fill_":
                copies.filled_by_value(arguments[0])
            return result

    return Fills()


if __name__ == "__main__":
    logging.disable(logging.WARNING)
    with contextlib.suppress(BrokenPipeError):
        main()
    sys.stdout.flush()
    sys.stderr.flush()
    # Threads and exit hooks of the image have nothing to add, and some hang without a GPU.
    os._exit(0)
