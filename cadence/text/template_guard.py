"""A jinja environment in which a template can neither reach out, nor run forever, nor fill the memory.

On top of jinja's immutable sandbox, the parsed template is rewritten before it is compiled:
  every loop and macro body begins with `tick`, which counts and looks at the clock;
  output that jinja would collect inside a macro or a block passes through `charge`, which counts characters
  (output outside of them is counted by the consumer of the stream);
  `a ~ b` becomes a call that looks at the length first;
  the template's own text passes through `hide`, for those who want to know it again in the output.
Operators, filters and string methods that can make much out of little look at the length of the result first, too.
The budget of one rendering travels in its context, so that renderings in several threads do not meet.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

import jinja2.ext
from jinja2 import nodes
from jinja2.exceptions import SecurityError
from jinja2.filters import FILTERS
from jinja2.parser import Parser
from jinja2.runtime import Context
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.utils import Namespace

from cadence.text.template_limits import (
    RaisedError,
    SizeGuard,
    TemplateLimits,
    check_format,
    check_widths,
    shallow_length,
)

BUDGET_KEY = "the budget of this rendering"  # no identifier, so no template can name it
_BUFFERED = (nodes.Macro, nodes.CallBlock, nodes.FilterBlock, nodes.AssignBlock, nodes.Block)
_TICKING = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)
_WIDENING_FILTERS = ("center", "indent", "batch", "slice", "wordwrap", "truncate")
_WIDENING_METHODS = ("center", "ljust", "rjust", "zfill", "expandtabs")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """Compiles chat templates; shared by all of them."""

    intercepted_binops = frozenset(["+", "*", "**", "%"])

    def __init__(self, limits: TemplateLimits, now: Callable[[], datetime], hide: Callable[[str], str] = str) -> None:
        self._size = SizeGuard(limits)
        self._hide = hide
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationTag, jinja2.ext.loopcontrols],
            finalize=self._finalize,
        )
        self.filters |= guarded_filters(self._size)
        del self.globals["lipsum"]

        def strftime_now(pattern: str) -> str:
            check_format(pattern)
            return now().strftime(pattern)

        self.globals |= {
            "raise_exception": _raise_exception,
            "strftime_now": strftime_now,
            "dict": TemplateDict(),
            "namespace": TemplateNamespace,
        }

    def _finalize(self, value: Any) -> Any:
        if isinstance(value, list | tuple | dict):
            self._size.deep(value)
        return value

    # Rewritten templates call these three; a template's own names cannot reach them.

    @staticmethod
    def tick(context: Context) -> None:
        context.parent[BUDGET_KEY].tick()

    @staticmethod
    def charge(context: Context, value: Any) -> Any:
        context.parent[BUDGET_KEY].charge(shallow_length(value) + 1)
        return value

    def concat_values(self, *values: Any) -> str:
        texts = [str(self._finalize(value)) for value in values]
        self._size.length(sum(map(len, texts)))
        return "".join(texts)

    # jinja's own hooks

    def _parse(self, source: str, name: str | None, filename: str | None) -> nodes.Template:
        tree = super()._parse(source, name, filename)
        _hide_text(tree, self._hide)
        _rewrite(tree, buffered=False)
        tree.set_environment(self)
        return tree

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            self._size.length(shallow_length(left) + shallow_length(right))
        elif operator == "*":
            self._size.repeat(left, right)
        elif operator == "**":
            self._size.power(left, right)
        elif isinstance(left, str):
            check_format(left)
        return super().call_binop(context, operator, left, right)

    def call(self, context: Context, obj: Any, /, *args: Any, **kwargs: Any) -> Any:
        method = getattr(obj, "__wrapped__", obj)  # the sandbox wraps str.format
        if isinstance(owner := getattr(method, "__self__", None), str):
            self._check_method(owner, method.__name__, args, kwargs)
        result = super().call(context, obj, *args, **kwargs)
        self._size.length(shallow_length(result))
        return result

    def _check_method(self, text: str, name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if name in _WIDENING_METHODS:
            check_widths((*args, *kwargs.values()))
        elif name in ("format", "format_map"):
            check_format(text)
        elif name == "join" and args:
            self._size.join(text, args[0])
        elif name == "replace" and len(args) >= 2:
            self._size.replace(text, args[0], args[1])
        elif name == "translate":
            raise SecurityError("translate is not available in chat templates")


def guarded_filters(size: SizeGuard) -> dict[str, Callable[..., Any]]:
    """jinja's filters that can make much out of little, looking first."""
    plain_join, plain_replace, plain_format = FILTERS["join"], FILTERS["replace"], FILTERS["format"]

    def join(context: Any, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> Any:
        items = list(value)
        size.join(str(d), items)
        return plain_join(context, items, d, attribute)

    def replace(context: Any, s: str, old: str, new: str, count: int | None = None) -> Any:
        size.replace(str(s), str(old), str(new))
        return plain_replace(context, s, old, new, count)

    def format_(value: str, *args: Any, **kwargs: Any) -> Any:
        check_format(str(value))
        return plain_format(value, *args, **kwargs)

    def tojson(
        value: Any,
        ensure_ascii: bool = False,
        indent: int | None = None,
        separators: tuple[str, str] | None = None,
        sort_keys: bool = False,
    ) -> str:
        """Unlike jinja's own, does not escape HTML."""
        check_widths((indent,))
        size.deep(value)
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)

    return {
        **{name: _with_checked_widths(FILTERS[name]) for name in _WIDENING_FILTERS},
        "join": _marked_like(plain_join, join),
        "replace": _marked_like(plain_replace, replace),
        "format": format_,
        "tojson": tojson,
    }


def _with_checked_widths(plain: Callable[..., Any]) -> Callable[..., Any]:
    def guarded(*args: Any, **kwargs: Any) -> Any:
        check_widths((*args, *kwargs.values()))
        return plain(*args, **kwargs)

    return _marked_like(plain, guarded)


def _marked_like(plain: Callable[..., Any], wrapper: Callable[..., Any]) -> Callable[..., Any]:
    """jinja marks functions that want the context, the environment or the evaluation context as first argument."""
    if hasattr(plain, "jinja_pass_arg"):
        wrapper.jinja_pass_arg = plain.jinja_pass_arg  # type: ignore[attr-defined]
    return wrapper


class GenerationTag(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}` marks what the model wrote; here it is a scope of its own."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.Scope(body).set_lineno(line)


class TemplateDict:
    """`dict(...)`, without access to the type."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)


class TemplateNamespace(Namespace):
    """Refuses names with a leading underscore, which could lead into Python's internals."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        self, *rest = args  # a template may call an attribute `self`
        attributes = dict(*rest, **kwargs)
        for name in attributes:
            _check_name(name)
        Namespace.__init__(self, attributes)

    def __setitem__(self, name: str, value: Any) -> None:
        _check_name(name)
        super().__setitem__(name, value)


def _check_name(name: Any) -> None:
    if str(name).startswith("_"):
        raise SecurityError(f"a namespace attribute may not begin with an underscore: {name!r}")


def _raise_exception(message: str) -> None:
    raise RaisedError(str(message))


def _environment_call(method: str, *args: nodes.Expr) -> nodes.Call:
    return nodes.Call(nodes.EnvironmentAttribute(method), list(args), [], None, None)


def _hide_text(tree: nodes.Template, hide: Callable[[str], str]) -> None:
    for data in tree.find_all(nodes.TemplateData):
        data.data = hide(data.data)
    for constant in tree.find_all(nodes.Const):
        if isinstance(constant.value, str):
            constant.value = hide(constant.value)


def _rewrite(node: nodes.Node, buffered: bool) -> None:
    """In place, children first. `buffered`: inside a node whose output jinja collects instead of streaming."""
    recursive_loop = isinstance(node, nodes.For) and node.recursive
    buffered = buffered or recursive_loop or isinstance(node, _BUFFERED)
    for child in list(node.iter_child_nodes()):
        _rewrite(child, buffered)
    for name, value in list(node.iter_fields()):
        if isinstance(value, list):
            setattr(node, name, [_without_concat(item) for item in value])
        elif isinstance(value, nodes.Concat):
            setattr(node, name, _without_concat(value))
    if isinstance(node, nodes.Output) and buffered:
        node.nodes = [_charged(item) for item in node.nodes]
    if isinstance(node, _TICKING):
        node.body.insert(0, nodes.ExprStmt(_environment_call("tick", nodes.ContextReference())))


def _without_concat(item: Any) -> Any:
    return _environment_call("concat_values", *item.nodes) if isinstance(item, nodes.Concat) else item


def _charged(item: nodes.Expr) -> nodes.Expr:
    value = nodes.Const(item.data) if isinstance(item, nodes.TemplateData) else item
    return _environment_call("charge", nodes.ContextReference(), value)
