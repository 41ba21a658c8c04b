"""How a chat template reads a message's content: as a string, or as a list of parts it loops over."""

from __future__ import annotations

from dataclasses import dataclass

from jinja2 import Environment, nodes


@dataclass(frozen=True, slots=True)
class ContentFormat:
    reads_parts: bool  # it loops over content
    reads_strings: bool  # it does not, or it asks first whether content is a string
    asks_for_none: bool = False  # it tells content that is none from content that is empty


def content_format(environment: Environment, source: str) -> ContentFormat:
    tree = environment.parse(source)
    aliases = _aliases(tree)
    reads_parts = any(_is_content(loop.iter, aliases) for loop in tree.find_all(nodes.For))
    asks = any(
        test.name in ("string", "iterable", "sequence", "mapping") and _is_content(test.node, aliases)
        for test in tree.find_all(nodes.Test)
    )
    asks_for_none = any(test.name == "none" and _is_content(test.node, aliases) for test in tree.find_all(nodes.Test))
    return ContentFormat(reads_parts, reads_strings=asks or not reads_parts, asks_for_none=asks_for_none)


def _aliases(tree: nodes.Template) -> set[str]:
    """Names under which content goes on: set from it, or the parameter of a macro that is called with it."""
    macros = {macro.name: macro for macro in tree.find_all(nodes.Macro)}
    aliases: set[str] = set()
    while True:
        found = _assigned(tree, aliases) | _passed(tree, aliases, macros)
        if found <= aliases:
            return aliases
        aliases |= found


def _assigned(tree: nodes.Template, aliases: set[str]) -> set[str]:
    return {
        assign.target.name
        for assign in tree.find_all(nodes.Assign)
        if isinstance(assign.target, nodes.Name) and _is_content(assign.node, aliases)
    }


def _passed(tree: nodes.Template, aliases: set[str], macros: dict[str, nodes.Macro]) -> set[str]:
    found: set[str] = set()
    for call in tree.find_all(nodes.Call):
        if isinstance(call.node, nodes.Name) and call.node.name in macros:
            parameters = macros[call.node.name].args
            pairs = zip(parameters, call.args, strict=False)
            found |= {parameter.name for parameter, value in pairs if _is_content(value, aliases)}
    return found


def _is_content(node: nodes.Node, aliases: set[str]) -> bool:
    """`x.content`, `x["content"]`, an alias, or one of these through filters or in one arm of an inline `if`."""
    if isinstance(node, nodes.Filter) and node.node is not None:
        return _is_content(node.node, aliases)
    if isinstance(node, nodes.CondExpr):
        arms = [arm for arm in (node.expr1, node.expr2) if arm is not None]
        return any(_is_content(arm, aliases) for arm in arms)
    if isinstance(node, nodes.Name):
        return node.name in aliases
    if isinstance(node, nodes.Getattr):
        return node.attr == "content"
    return isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and node.arg.value == "content"
