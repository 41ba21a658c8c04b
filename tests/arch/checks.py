"""The laws of docs/structures.md that can be read off the code. Each check: sources -> violations."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from tests.arch.source import PACKAGE, ROOT, Source, Violation, imported_modules, named_modules

Check = Callable[[Sequence[Source]], Iterator[Violation]]

MAX_FILE_LINES = 400
MAX_FUNCTION_LINES = 50
MAX_PARAMETERS = 7
MAX_ANCESTORS = 2  # classes of this code base above a class

# room -> rooms it may import. Arrows run one way; core and config are under everything.
MAY_IMPORT = {
    "core": set(),
    "gguf": {"core"},
    "config": {"core", "gguf"},
    "process": {"core", "config"},
    "text": {"core", "config", "gguf", "process"},
    "structured": {"core", "config", "process", "text"},
    "audio": {"core", "config"},
    "media": {"core", "config", "audio"},
    "scheduler": {"core", "config"},
    "device": {"core", "config"},
    "kernels": {"core", "config", "device"},
    "models": {"core", "config", "gguf", "device", "kernels"},
    "lora": {"core", "config", "device", "kernels", "models"},
    "sample": {"core", "config", "device", "kernels"},
    "speculate": {"core", "config", "device", "kernels", "models", "sample"},
    "runner": {"core", "config", "device", "kernels", "lora", "models", "sample", "speculate"},
    "distributed": {"core", "config", "device", "kernels", "process"},
    "executor": {
        *("core", "config", "process", "device", "kernels", "lora", "models", "sample", "speculate", "runner"),
        "distributed",
    },
    "engine": {"core", "config", "process", "text", "structured", "audio", "media", "scheduler", "executor"},
    "entrypoints": {"core", "config", "process", "text", "audio", "media", "engine"},
}
MAY_IMPORT["entrypoints/cli"] = set(MAY_IMPORT)  # the shell may ask any room, lazily
MAY_IMPORT["vllm"] = {"core", "config", "text", "audio", "media", "engine", "entrypoints"}
HOST_ROOMS = ("core", "config", "scheduler")
ENVIRONMENT_FILE = "cadence/config/env.py"
CUDA_FILE = "cadence/device/cuda.py"
KERNELS = "cadence/kernels/"
PRIVATE_NAMES = {  # library -> the one file that uses names of it which it does not document
    "ray": "cadence/executor/network/ray_ranks.py",
    "torch": "cadence/device/torch_private.py",
    "triton": "cadence/kernels/triton/common/private.py",
}
ROWS_FILE = "cadence/scheduler/rows.py"
STRUCTURES = ROOT / "docs/structures.md"

# The files on the path of every token, and all of ours they may import: no package of a feature is among these.
HOT_FILES: dict[str, dict[str, str]] = {  # file -> room -> modules
    "cadence/engine/core.py": {
        "core": "errors failure",
        "core.contract": "control engine_state forward_counts request step update",
        "engine": "intake",
        "executor.interface": "base",
        "scheduler": "scheduler step_in_flight",
    },
    "cadence/engine/core_loop.py": {
        "core": "errors failure shown",
        "core.contract": "codec control control_messages engine_state messages request update",
        "engine": "core fronts heartbeat",
        "executor.worker": "rounds",
    },
    "cadence/scheduler/scheduler.py": {
        "config": "engine_config",
        "core": "errors",
        "core.model": "kv_spec",
        "core.contract": "engine_state request step update",
        "scheduler": "admission advance budget burst decode_times extension feature news pace plan preempt queue "
        "request_state retiring rows running shares sharing snapshot step_in_flight update",
        "scheduler.kv": "manager sizing",
    },
    "cadence/scheduler/advance.py": {
        "core.contract": "step",
        "scheduler": "feature pace plan preempt request_state rows running sharing turns",
        "scheduler.kv": "manager",
    },
    "cadence/scheduler/admission.py": {
        "core.contract": "step",
        "scheduler": "feature pace plan queue request_state running",
        "scheduler.kv": "manager",
    },
    "cadence/scheduler/update.py": {
        "core.contract": "step update",
        "scheduler": "advance feature news request_state rows step_in_flight stop",
    },
    "cadence/runner/runner.py": {
        "core.contract": "step table",
        "models.interface": "model",
        "runner": "feature forward_pass layout loop parts",
        "runner.state": "blocks requests",
        "sample": "pipeline",
    },
    "cadence/runner/step_loop.py": {
        "core.contract": "step",
        "kernels.interface": "row_ops",
        "models.interface": "wanted",
        "runner": "after_sample driver feature forward_pass graphs layout loop parts shapes",
        "sample": "context pipeline sampler",
    },
    "cadence/runner/forward_pass.py": {
        "device": "base",
        "kernels.interface": "ops row_ops",
        "models.interface": "aux_hidden model wanted",
        "runner": "after_sample buffers feature graphs layout shapes",
        "runner.state": "blocks requests",
        "sample": "prompt_slice",
    },
}


def room_imports(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        if not source.room:
            continue
        allowed = MAY_IMPORT.get(source.room)
        if allowed is None:
            yield Violation(source.path, f"room {source.room} has no entry in MAY_IMPORT")
            continue
        rooms = {name.split(".")[1] for name in imported_modules(source) if name.startswith(PACKAGE + ".")}
        for room in sorted(rooms & set(MAY_IMPORT) - allowed - {source.room}):
            yield Violation(f"{source.path}->{room}", f"{source.path} imports {room}, which lies above or beside it")


def torch_in_host_half(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        if source.room in HOST_ROOMS and any(name.split(".")[0] == "torch" for name in imported_modules(source)):
            yield Violation(source.path, "the host half does not import torch")


def cuda_outside_its_door(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        if source.path == CUDA_FILE:
            continue
        names = _dotted_names(source)
        if "torch.cuda" in names or any(name.startswith("torch.cuda") for name in imported_modules(source)):
            yield Violation(source.path, f"torch.cuda belongs in {CUDA_FILE}")


def environment_reads(sources: Sequence[Source]) -> Iterator[Violation]:
    forbidden = {"os.environ", "os.environb", "os.getenv", "os.putenv"}
    for source in sources:
        if source.path == ENVIRONMENT_FILE:
            continue
        names = _dotted_names(source)
        if forbidden & (names | set(imported_modules(source))):
            yield Violation(source.path, f"the environment is read in {ENVIRONMENT_FILE} only")


def private_names_of_libraries(sources: Sequence[Source]) -> Iterator[Violation]:
    """What a library may change without a word is used in one file, where a test can hold it to a version."""
    for source in sources:
        for name in sorted({*_private_attributes(source), *imported_modules(source)}):
            library, *inner = name.split(".")
            file = PRIVATE_NAMES.get(library, source.path)
            if file != source.path and any(part.startswith("_") for part in inner):
                yield Violation(f"{source.path}:{name}", f"private names of {library} belong in {file}")


def _private_attributes(source: Source) -> Iterator[str]:
    """`torch._C._cuda` for every such chain of names, but for `__version__` and its like."""
    for node in source.nodes:
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.endswith("__"):
            yield ast.unparse(node)


def file_sizes(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        lines = source.text.count("\n")
        if lines >= MAX_FILE_LINES and not source.path.startswith(KERNELS):
            yield Violation(source.path, f"{lines} lines; files stay below {MAX_FILE_LINES}")


def function_sizes(sources: Sequence[Source]) -> Iterator[Violation]:
    for source, name, node in _functions(sources):
        lines = (node.end_lineno or node.lineno) - node.lineno + 1
        if lines >= MAX_FUNCTION_LINES and not source.path.startswith(KERNELS):
            yield Violation(f"{source.path}:{name}", f"{lines} lines; functions stay below {MAX_FUNCTION_LINES}")


def parameter_counts(sources: Sequence[Source]) -> Iterator[Violation]:
    """Kernels take raw pointers and strides. `LLM.chat` and its like have the parameters users know: allow-listed."""
    for source, name, node in _functions(sources):
        arguments = node.args
        names = [a.arg for a in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
        count = len([a for a in names if a not in ("self", "cls")])
        if count > MAX_PARAMETERS and not source.path.startswith(KERNELS):
            yield Violation(f"{source.path}:{name}", f"{count} parameters; at most {MAX_PARAMETERS}, bundle them")


def inheritance(sources: Sequence[Source]) -> Iterator[Violation]:
    bases: dict[str, list[str]] = {}
    places: dict[str, str] = {}
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef):
                bases[node.name] = [ast.unparse(base).split(".")[-1].split("[")[0] for base in node.bases]
                places[node.name] = source.path

    def depth(name: str) -> int:
        return max((1 + depth(base) for base in bases[name] if base in bases and base != name), default=0)

    for name in bases:
        if depth(name) > MAX_ANCESTORS:
            yield Violation(f"{places[name]}:{name}", f"{depth(name)} ancestors; at most {MAX_ANCESTORS}")
        if len([base for base in bases[name] if base in bases]) > 1:
            yield Violation(f"{places[name]}:{name}", "inherits from two classes of this code base (a mixin)")


def unique_class_names(sources: Sequence[Source]) -> Iterator[Violation]:
    """No two classes share a name, so that a name in a message or a document means one thing."""
    places: dict[str, list[str]] = {}
    for source in sources:
        for node in source.tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(source.path)
    for name, paths in places.items():
        if len(paths) > 1:
            yield Violation(name, f"is a class of {', '.join(paths)}")


def hot_files_import_what_is_listed(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        listed = HOT_FILES.get(source.path, {})
        allowed = {f"{PACKAGE}.{room}.{name}" for room, names in listed.items() for name in names.split()}
        for name in sorted(_imported_files(source)) if listed else ():
            if name not in allowed:
                yield Violation(f"{source.path}->{name}", "is not on the list of what this hot file may import")


def _imported_files(source: Source) -> set[str]:
    """Modules of ours that a file imports; of `from a.b import c` a.b, and a.b.c where a.b is a folder."""
    found = set()
    for name in imported_modules(source):
        if name.startswith(PACKAGE + "."):
            place = ROOT / name.replace(".", "/")
            parent = place.parent.with_suffix(".py").is_file()  # `name` is something inside of a module
            found |= set() if parent or place.is_dir() else {name}
    return found


def global_state(sources: Sequence[Source]) -> Iterator[Violation]:
    for source in sources:
        if any(isinstance(node, ast.Global) for node in source.nodes):
            yield Violation(source.path, "no global state: pass it")


def shapes_of_tensor_fields(sources: Sequence[Source]) -> Iterator[Violation]:
    """A field of a dataclass that is a tensor or an array has its shape, `[rows, hidden]`, in a comment on its line."""
    for source, owner, field in _dataclass_fields(sources):
        annotation = ast.unparse(field.annotation)
        holds_array = annotation in ("torch.Tensor", "Tensor", "np.ndarray") or annotation.endswith("Array")
        comment = source.text.splitlines()[(field.end_lineno or field.lineno) - 1].partition("#")[2]
        if holds_array and "[" not in comment:
            yield Violation(f"{source.path}:{owner}.{ast.unparse(field.target)}", "no shape written beside the field")


def host_array_names(sources: Sequence[Source]) -> Iterator[Violation]:
    """Fields that are host arrays end in _np."""
    for source, owner, field in _dataclass_fields(sources):
        annotation, name = ast.unparse(field.annotation), ast.unparse(field.target)
        if (annotation == "np.ndarray" or annotation.endswith("Array")) and not name.endswith("_np"):
            yield Violation(f"{source.path}:{owner}.{name}", "a host array's name ends in _np")


def folders_in_structures(sources: Sequence[Source], document: Path = STRUCTURES) -> Iterator[Violation]:
    text = document.read_text(encoding="utf-8")
    for folder in sorted({source.path.rpartition("/")[0] for source in sources} - {PACKAGE}):
        if f"`{folder}`" not in text:
            yield Violation(folder, f"{document.name} does not name this folder")


def circles_of_files(sources: Sequence[Source]) -> Iterator[Violation]:
    """No file imports itself by way of others, wherever the imports stand, also for the type checker alone."""
    modules = {source.module: source.path for source in sources}
    edges = {source.module: _modules_of(set(modules), source, named_modules) for source in sources}
    for module, path in modules.items():
        reached, ahead = set[str](), list(edges[module])
        while ahead:
            reached.add(found := ahead.pop())
            ahead += edges[found] - reached
        if module in reached:
            yield Violation(path, "imports itself by way of other files")


def mutual_folder_imports(sources: Sequence[Source]) -> Iterator[Violation]:
    """Of two folders at most one imports the other, wherever the imports stand; a folder inside another is one too."""
    modules = {source.module: source.path.rpartition("/")[0] for source in sources}
    edges: dict[tuple[str, str], str] = {}  # (importing folder, imported folder) -> a file that does so
    for source in sources:
        for module in _modules_of(set(modules), source):
            edges.setdefault((modules[source.module], modules[module]), source.path)
    for (folder, other), path in sorted(edges.items()):
        if folder < other and (other, folder) in edges:
            found = f"{path} imports {other}, and {edges[other, folder]} imports {folder}"
            yield Violation(f"{folder}<->{other}", found)


def rows_have_one_writer(sources: Sequence[Source]) -> Iterator[Violation]:
    """Columns of the scheduler's rows are written by their own verbs alone."""
    for source in sources:
        if source.room != "scheduler" or source.path == ROWS_FILE:
            continue
        for node in source.nodes:
            for target in _assigned(node):
                place = target.value if isinstance(target, ast.Subscript) else target
                if isinstance(place, ast.Attribute) and "rows" in ast.unparse(place.value).split(".")[-1]:
                    yield Violation(f"{source.path}:{ast.unparse(target)}", f"is written in {ROWS_FILE} alone")


def positional_splats(sources: Sequence[Source]) -> Iterator[Violation]:
    """Constructors are called with keywords, not with `*group`; a function's own `*args` may be passed on."""
    for source in sources:
        passed_on = {
            inner
            for node in source.nodes
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.args.vararg is not None
            for inner in ast.walk(node)
            if isinstance(inner, ast.Starred) and ast.unparse(inner.value) == node.args.vararg.arg
        }
        calls = [node for node in source.nodes if isinstance(node, ast.Call) and _constructs(node.func)]
        for call in calls:
            for each in call.args:
                if isinstance(each, ast.Starred) and each not in passed_on:
                    yield Violation(f"{source.path}:{ast.unparse(call.func)}", f"{ast.unparse(each)}: use keywords")


def _constructs(function: ast.expr) -> bool:
    """Whether what is called is a class, by its name, or `__init__`. `(Segment * 3)(...)` is an array of C."""
    if isinstance(function, ast.Subscript):
        function = function.value
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in ("cls", "__init__") or name.lstrip("_")[:1].isupper()


def _assigned(node: ast.AST) -> Sequence[ast.expr]:
    if isinstance(node, ast.Assign):
        return node.targets
    return [node.target] if isinstance(node, ast.AugAssign | ast.AnnAssign) else []


def _modules_of(
    modules: set[str], source: Source, imports_of: Callable[[Source], tuple[str, ...]] = imported_modules
) -> set[str]:
    """Those of `modules` that a file imports; a package counts where something of its own file is named."""
    names = set(imports_of(source))
    parents = {name.rpartition(".")[0] for name in names & modules}
    return (names & modules) - parents - {source.module}


def _dotted_names(source: Source) -> set[str]:
    """Every `name.attribute` written in the file."""
    nodes = (node for node in source.nodes if isinstance(node, ast.Attribute))
    return {f"{node.value.id}.{node.attr}" for node in nodes if isinstance(node.value, ast.Name)}


def _functions(sources: Sequence[Source]) -> Iterator[tuple[Source, str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    for source in sources:
        owners = {child: node.name for node in source.nodes if isinstance(node, ast.ClassDef) for child in node.body}
        for node in source.nodes:
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield source, f"{owners[node]}.{node.name}" if node in owners else node.name, node


def _dataclass_fields(sources: Sequence[Source]) -> Iterator[tuple[Source, str, ast.AnnAssign]]:
    for source in sources:
        for node in source.nodes:
            if isinstance(node, ast.ClassDef) and any("dataclass" in ast.unparse(d) for d in node.decorator_list):
                yield from ((source, node.name, field) for field in node.body if isinstance(field, ast.AnnAssign))


ALL: tuple[Check, ...] = (
    room_imports,
    torch_in_host_half,
    cuda_outside_its_door,
    environment_reads,
    private_names_of_libraries,
    file_sizes,
    function_sizes,
    parameter_counts,
    inheritance,
    unique_class_names,
    hot_files_import_what_is_listed,
    global_state,
    shapes_of_tensor_fields,
    host_array_names,
    folders_in_structures,
    circles_of_files,
    mutual_folder_imports,
    rows_have_one_writer,
    positional_splats,
)
