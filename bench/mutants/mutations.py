"""Small changes to a source file that a test should detect.

Each changes one place in the text: a comparison, operator, number or truth value is replaced, a guard never
holds, a statement is removed, or a function returns None. Not changed is text that does not affect behaviour:
annotations, docstrings, log messages and texts of exceptions; settings, which are upper-case numbers with a
docstring, because tests use them by name; and assertions, including `strict` of zip.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise

LOGS = {"log", "logger", "_log", "_LOGGER", "LOG"}

COMPARISONS: dict[type[ast.cmpop], ast.cmpop] = {
    ast.Lt: ast.LtE(),
    ast.LtE: ast.Lt(),
    ast.Gt: ast.GtE(),
    ast.GtE: ast.Gt(),
    ast.Eq: ast.NotEq(),
    ast.NotEq: ast.Eq(),
    ast.Is: ast.IsNot(),
    ast.IsNot: ast.Is(),
    ast.In: ast.NotIn(),
    ast.NotIn: ast.In(),
}
OPERATORS: dict[type[ast.operator], ast.operator] = {
    ast.Add: ast.Sub(),
    ast.Sub: ast.Add(),
    ast.Mult: ast.Div(),
    ast.Div: ast.Mult(),
    ast.FloorDiv: ast.Mult(),
    ast.Mod: ast.Mult(),
}
LEAVES = (ast.Return, ast.Continue, ast.Break, ast.Raise)


@dataclass(frozen=True, slots=True, order=True)
class Mutant:
    """One change. start, end: range of bytes that `text` replaces. was: the original text."""

    path: str
    line: int
    start: int
    end: int
    was: str
    text: str

    def applied(self, source: bytes) -> bytes:
        """Return the file's content with this change."""
        return source[: self.start] + self.text.encode() + source[self.end :]

    @property
    def change(self) -> str:
        """The original and the new text, shortened."""
        was, text = (" ".join(of.split())[:70] for of in (self.was, self.text))
        return f"{was} -> {text}"

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"


def mutants_of(path: str, source: bytes) -> list[Mutant]:
    """Return every change to a file, in the order of the text."""
    starts = [0, *accumulate(len(line) for line in source.splitlines(keepends=True))]

    def mutant(node: ast.expr | ast.stmt, text: str) -> Mutant:
        assert node.end_lineno is not None and node.end_col_offset is not None
        start = starts[node.lineno - 1] + node.col_offset
        end = starts[node.end_lineno - 1] + node.end_col_offset
        return Mutant(path, node.lineno, start, end, source[start:end].decode(), text)

    return sorted(mutant(node, text) for node, text in _changes(ast.parse(source)))


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """Yield nodes below this one with their replacements."""
    if isinstance(node, ast.stmt):
        yield from _of_statement(node)
    elif isinstance(node, ast.expr):
        for other in _of_expression(node):
            yield node, f"({ast.unparse(other)})"
    for child in _parts(node):
        yield from _changes(child)


def _parts(node: ast.AST) -> Iterator[ast.AST]:
    """Yield the parts of a node that may be changed."""
    match node:
        case ast.Module():
            following = pairwise([*node.body, ast.Pass()])
            yield from (each for each, after in following if not _is_setting(each, after))
        case ast.FunctionDef() | ast.AsyncFunctionDef():
            yield from (*node.args.defaults, *filter(None, node.args.kw_defaults), *node.body)
        case ast.ClassDef():
            yield from node.body
        case ast.AnnAssign():
            yield from filter(None, [node.value])
        case ast.If(test=ast.Name(id="TYPE_CHECKING")):
            return
        case ast.Call(func=ast.Name(id="zip"), args=lists):
            yield from lists
        case ast.Raise() | ast.Assert() | ast.JoinedStr() | ast.Import() | ast.ImportFrom():
            return
        case ast.Expr(value=ast.Call(func=ast.Attribute(value=ast.Name(id=name)))) if name in LOGS:
            return
        case _:
            yield from ast.iter_child_nodes(node)


def _of_statement(node: ast.stmt) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    match node:
        case ast.If(orelse=[]) if isinstance(node.body[-1], LEAVES):
            yield node.test, "False"
        case ast.Return(value=ast.expr() as value) if not _is_false_or_none(value):
            yield node, "return None"
        case ast.Raise() | ast.AugAssign() | ast.Delete():
            yield node, "pass"
        case ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            yield node, "pass"
        case ast.Expr(value=ast.Call() | ast.Await(value=ast.Call()) as value) if not _is_logged(value):
            yield node, "pass"


def _of_expression(node: ast.expr) -> Iterator[ast.expr]:
    match node:
        case ast.Compare(ops=[operator]):
            yield ast.Compare(node.left, [COMPARISONS[type(operator)]], node.comparators)
        case ast.BoolOp():
            yield ast.BoolOp(ast.Or() if isinstance(node.op, ast.And) else ast.And(), node.values)
        case ast.BinOp() if type(node.op) in OPERATORS and not _is_text(node.left):
            yield ast.BinOp(node.left, OPERATORS[type(node.op)], node.right)
        case ast.UnaryOp(op=ast.Not()):
            yield node.operand
        case ast.Constant(value=bool() as value):
            yield ast.Constant(not value)
        case ast.Constant(value=int() as value):
            yield ast.Constant(value + 1)
        case ast.Constant(value=float() as value):
            yield ast.Constant(2 * value or 1.0)


def _is_setting(node: ast.stmt, after: ast.stmt) -> bool:
    """Return whether a statement assigns numbers to upper-case names, with a docstring after it."""
    match node, after:
        case (
            ast.Assign(targets=[target], value=value)
            | ast.AnnAssign(target=target, value=ast.expr() as value),
            ast.Expr(value=ast.Constant(value=str())),
        ):
            names = target.elts if isinstance(target, ast.Tuple) else [target]
            named = all(isinstance(name, ast.Name) and name.id.isupper() for name in names)
            return named and _is_of_numbers(value)
    return False


def _is_of_numbers(node: ast.expr) -> bool:
    """Return whether an expression consists of numbers only."""
    match node:
        case ast.Constant(value=value):
            return isinstance(value, int | float) and not isinstance(value, bool)
        case ast.UnaryOp(operand=part):
            return _is_of_numbers(part)
        case ast.BinOp(left=left, right=right):
            return _is_of_numbers(left) and _is_of_numbers(right)
        case ast.Tuple(elts=parts):
            return all(map(_is_of_numbers, parts))
        case ast.Call(func=ast.Name(), args=parts, keywords=named):
            return all(map(_is_of_numbers, (*parts, *(one.value for one in named))))
    return False


def _is_false_or_none(node: ast.expr) -> bool:
    """Return whether replacing the value by None changes nothing or hardly anything."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is False)


def _is_text(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def _is_logged(node: ast.expr) -> bool:
    match node:
        case ast.Call(func=ast.Attribute(value=ast.Name(id=name))):
            return name in LOGS
    return False
