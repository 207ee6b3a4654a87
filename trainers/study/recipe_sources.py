"""Sources of the recipes' settings: the comments beside the values in the table of recipes, read from its code."""

from __future__ import annotations

import ast
import inspect
import io
import re
import tokenize
from collections.abc import Mapping
from functools import cache

from ..algorithms import recipes

Sources = Mapping[str, str]
"""Comment by path of the setting, such as "optimization.lr"; empty for a value without a comment."""

_ABBREVIATION = re.compile(r"^    (\S+(?: \S+)?) {2,}(\S.*)$", re.MULTILINE)


@cache
def recipe_sources(name: str) -> Sources:
    """Return the settings that a recipe of the table states, its base's included, each with its comment.

    Raises:
        KeyError: There is no such recipe in the table.
    """
    return _Table(inspect.getsource(recipes)).recipe(name)


def abbreviations() -> Mapping[str, str]:
    """Return the publications and programs behind the abbreviations of the comments."""
    listed = (recipes.__doc__ or "").partition("Sources:\n")[2]
    return dict(_ABBREVIATION.findall(listed))


class _Table:
    """Evaluation of the table's expressions to the comments of their values.

    It evaluates the few forms that the table consists of: calls of `Recipe` and of the classes of its parts,
    `replace`, `with_settings`, recipes by name, and functions that extend a recipe.

    Args:
        code: Source code of the module.
    """

    def __init__(self, code: str) -> None:
        self._comments: dict[int, str] = {}
        self._own_line: set[int] = set()
        for token in tokenize.generate_tokens(io.StringIO(code).readline):
            if token.type == tokenize.COMMENT:
                self._comments[token.start[0]] = token.string.removeprefix("#").strip()
                if token.line[: token.start[1]].strip() == "":
                    self._own_line.add(token.start[0])
        tree = ast.parse(code)
        self._functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        self._constants = {
            target.id: node.value
            for node in tree.body
            if isinstance(node, ast.Assign)
            for target in node.targets
            if isinstance(target, ast.Name)
        }
        self._recipes: dict[str, ast.Call] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and (name := self._name_of(node)):
                self._recipes[name] = node

    def recipe(self, name: str) -> dict[str, str]:
        """Return the comments of a recipe's settings by path."""
        found = self._evaluate(self._recipes[name], {})
        return {path: comment for path, comment in found.items() if path not in ("name", "about")}

    def _name_of(self, call: ast.Call) -> str | None:
        """Return the name of the recipe that a call makes; None for another call."""
        kind = call.func.id if isinstance(call.func, ast.Name) else ""
        if kind not in ("Recipe", "replace") and kind not in self._functions:
            return None
        values = [keyword.value for keyword in call.keywords if keyword.arg == "name"]
        if kind in self._functions and len(call.args) > 1:
            values = [call.args[1]]
        name = values[0].value if values and isinstance(values[0], ast.Constant) else None
        return name if isinstance(name, str) else None

    def _evaluate(self, node: ast.expr, known: Mapping[str, dict[str, str]]) -> dict[str, str]:
        """Return the comments of an expression's values; the path of the expression itself is empty.

        Args:
            node: Expression.
            known: Values of the local names.
        """
        if isinstance(node, ast.Name):
            if node.id in known:
                return known[node.id]
            return self._evaluate(self._constants[node.id], known)
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant):
            return self._evaluate(self._recipes[str(node.slice.value)], known)
        if isinstance(node, ast.Attribute):
            return _below(self._evaluate(node.value, known), node.attr)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):  # with_settings({…})
            (settings,) = node.args
            assert isinstance(settings, ast.Dict)
            stated = {
                str(ast.literal_eval(key)): self._comment(key, node) for key in settings.keys if key is not None
            }
            return {**self._evaluate(node.func.value, known), **stated}
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
            if node.func.id in self._functions:
                return self._call(self._functions[node.func.id], node, known)
            base = self._evaluate(node.args[0], known) if node.func.id == "replace" else {}
            return self._with_keywords(base, node, known)
        return {"": self._comment(node, node)}

    def _with_keywords(
        self, base: Mapping[str, str], call: ast.Call, known: Mapping[str, dict[str, str]]
    ) -> dict[str, str]:
        """Return the comments of a base in which the keywords of a call replace whole parts."""
        found = dict(base)
        for keyword in call.keywords:
            name = str(keyword.arg)
            found = {path: comment for path, comment in found.items() if path.partition(".")[0] != name}
            for path, comment in self._argument(keyword, call, known).items():
                found[f"{name}.{path}" if path else name] = comment
        return found

    def _argument(
        self, keyword: ast.keyword, call: ast.Call, known: Mapping[str, dict[str, str]]
    ) -> dict[str, str]:
        value = keyword.value
        is_local = isinstance(value, ast.Name) and (value.id in known or value.id in self._constants)
        if is_local or isinstance(value, ast.Attribute) or (isinstance(value, ast.Call) and value.keywords):
            return self._evaluate(value, known)
        if isinstance(value, ast.Call) and not value.args:
            return {}  # a part with its defaults
        return {"": self._comment(keyword, call)}

    def _call(
        self, function: ast.FunctionDef, call: ast.Call, known: Mapping[str, dict[str, str]]
    ) -> dict[str, str]:
        """Return the comments of the recipe that a function makes of its arguments."""
        local = dict(known)
        for parameter, value in zip(function.args.args, call.args, strict=False):
            if not isinstance(value, ast.Constant):
                local[parameter.arg] = self._evaluate(value, known)
        for keyword in call.keywords:
            local[str(keyword.arg)] = {"": self._comment(keyword, call)}
        for statement in function.body:
            if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
                local[statement.targets[0].id] = self._evaluate(statement.value, local)
            elif isinstance(statement, ast.Return) and statement.value is not None:
                return self._evaluate(statement.value, local)
        raise AssertionError(f"{function.name} returns no recipe")

    def _comment(self, node: ast.AST, call: ast.AST) -> str:
        """Return the comment at the end of a value's last line, else the lines of comments above its first one."""
        first, last = (getattr(node, name) for name in ("lineno", "end_lineno"))
        if last in self._comments and last not in self._own_line:
            return self._comments[last]
        above: list[str] = []
        line = first - 1
        while line in self._own_line and line >= getattr(call, "lineno", 0) - 1:
            above.insert(0, self._comments[line])
            line -= 1
        return " ".join(above)


def _below(settings: Mapping[str, str], part: str) -> dict[str, str]:
    prefix = f"{part}."
    return {path.removeprefix(prefix): text for path, text in settings.items() if path.startswith(prefix)}
