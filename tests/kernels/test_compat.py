"""Private symbols of torch: all in one file, all there, and right results without any of them."""

import ast
from pathlib import Path

import pytest
import torch
from torch import nn

import nearsight
from nearsight.acceleration import accelerate, restore
from nearsight.functional.local import local_attention as equation
from nearsight.functional.local import query_key_value
from nearsight.kernels import compat, local_attention
from nearsight.models import create_model

PACKAGE = Path(nearsight.__file__).parent
NAMES = [symbol.name for symbol in compat.SYMBOLS]
# Private names of other libraries than torch and Triton that may stand where they are used.
ALLOWED = {
    "torchvision.models.detection._utils": "how boxes are encoded; torchvision has no other",
    "stored._images": "where torchvision's datasets keep their list of images",
    "stored._image_files": "the same",
    "stored._labels": "and its labels",
    "model._pos_embed": "timm's ViT adds position in this method, which its subclasses replace",
}
FOR_USERS = ("_replace", "_asdict", "_fields", "_exit")  # of named tuples and os, documented by Python
FOREIGN_ROOTS = ("torch", "triton", "functorch", "torchvision", "timm")


def private(dotted: str) -> bool:
    return any(part.startswith("_") and not part.startswith("__") for part in dotted.split("."))


def internal(dotted: str) -> bool:
    """Of torch or Triton and not for users: a name with an underscore, or Triton's runtime and compiler."""
    if dotted.startswith(("torch._foreach_", "torch.ops.")):
        return False
    return private(dotted) or dotted.startswith(("triton.runtime", "triton.backends", "triton.compiler"))


def names_of_ours(trees: list[ast.Module]) -> set[str]:
    """What the package itself defines: functions, classes, variables, attributes of self."""
    names = set()
    for node in (node for tree in trees for node in ast.walk(tree)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            names.add(node.attr)
    return names


def foreign_privates(tree: ast.Module, ours: set[str]) -> list[str]:
    """Private names that a file uses and that are not the package's own, as they stand there.

    An import of a private module or name; an attribute that begins with one underscore and is of a library by its
    root (`torch._C`), or that nothing in the package defines (`tensor._version`); and such a name given to `getattr`.
    """
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names if internal(alias.name)]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and node.module and node.module != "__future__":
            names = [f"{node.module}.{alias.name}" for alias in node.names]
            outside = not node.module.startswith("nearsight")
            found += [node.module if private(node.module) else name for name in names if outside and internal(name)]
        elif isinstance(node, ast.Attribute):
            dotted = ast.unparse(node)
            if dotted.split(".")[0] in FOREIGN_ROOTS:
                found += [dotted] if internal(dotted) else []
            elif private(node.attr) and node.attr not in ours and node.attr not in FOR_USERS:
                found.append(dotted)
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            name = node.args[1].value if isinstance(node.args[1], ast.Constant) else ""
            found += [ast.unparse(node)] if private(name) and name not in ours else []
    return found


def test_this_torch_has_all_of_them():
    torch_has = f"torch {torch.__version__} has no {{}}, by which nearsight knew {{}}; until it does otherwise: {{}}"
    lost = [symbol for symbol in compat.SYMBOLS if symbol.name in compat.find_missing()]
    assert not lost, "\n".join(torch_has.format(symbol.name, symbol.why, symbol.without) for symbol in lost)


def test_no_private_symbol_stands_elsewhere():
    trees = {str(path.relative_to(PACKAGE)): ast.parse(path.read_text()) for path in PACKAGE.rglob("*.py")}
    ours = names_of_ours(list(trees.values()))
    del trees["kernels/compat.py"]
    stray = {(file, name) for file, tree in trees.items() for name in foreign_privates(tree, ours)}
    stray = {(file, name) for file, name in stray if name not in ALLOWED}
    assert not stray, f"private symbols belong into kernels/compat.py, with a reason and a way without them: {stray}"


@pytest.mark.parametrize(
    ("line", "private"),
    [
        ("import torch._dynamo", True),
        ("from torch._inductor import config", True),
        ("from triton.runtime import driver", True),
        ("from torch.nn.modules.batchnorm import _BatchNorm", True),
        ("tensor._is_zerotensor()", True),
        ("torch.autograd._profiler_enabled()", True),
        ("getattr(torch, '_C')", True),
        ("torch._foreach_mul_([], 2)", False),
        ("torch.ops.aten._softmax_backward_data", False),
        ("options._replace(rows=2)", False),
        ("self._ours", False),
    ],
)
def test_the_search_knows_one_when_it_sees_it(line, private):
    assert bool(foreign_privates(ast.parse(line), {"_ours"})) == private


class Without:
    """A module as a release without one of its symbols would have it."""

    def __init__(self, whole, path: list[str]) -> None:
        self._whole, self._path = whole, path

    def __getattr__(self, name):
        if name != self._path[0].removesuffix("()"):
            return getattr(self._whole, name)
        if len(self._path) == 1:
            raise AttributeError(name)
        return Without(getattr(self._whole, name), self._path[1:])

    def __call__(self):
        return Without(self._whole(), self._path)


@pytest.fixture(params=NAMES)
def one_is_gone(request, monkeypatch):
    """compat, in a torch without this symbol."""
    monkeypatch.setattr(compat, "torch", Without(torch, request.param.split(".")[1:]))
    monkeypatch.setattr(compat, "MISSING", compat.find_missing())
    assert set(compat.MISSING) == {request.param}
    return request.param


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own forward derivatives use it
def test_results_are_right_without_it(one_is_gone):
    inputs = torch.randn(2, 5, 7, 3, 2, 8, requires_grad=True), *torch.randn(2, 1, 3, 4).requires_grad_()
    exact = equation(*query_key_value(inputs[0]), *inputs[1:], kernel_size=3)
    ours = local_attention(*inputs, kernel_size=3)
    torch.testing.assert_close(ours, exact)
    gradient = torch.randn_like(exact)
    found, wanted = (torch.autograd.grad(out, inputs, gradient) for out in (ours, exact))
    torch.testing.assert_close(found, wanted, rtol=1e-4, atol=1e-5)
    derivatives = [
        torch.func.jvp(lambda x, f=f: f(x), (inputs[0].detach(),), (torch.ones_like(inputs[0]),))[1]
        for f in (
            lambda x: local_attention(x, kernel_size=3),
            lambda x: equation(*query_key_value(x), kernel_size=3),
        )
    ]
    torch.testing.assert_close(*derivatives, rtol=1e-4, atol=1e-5)


def test_an_accelerated_model_is_right_without_it(one_is_gone):
    model = create_model("convit_nano_32", depth=3, num_classes=3).eval()
    images, parameters = torch.randn(2, 3, 32, 32), list(model.parameters())
    results = []
    for change in (restore, accelerate):
        logits = change(model)(images)
        with torch.no_grad():
            without_gradients = model(images)
        results.append([without_gradients, logits, *torch.autograd.grad(logits.square().sum(), parameters)])
    torch.testing.assert_close(results[1], results[0], rtol=1e-3, atol=1e-5)


def test_every_answer_without_it_is_the_careful_one(one_is_gone):
    """Plain operators, or torch's own way to ours: what never gives a wrong result."""
    tensor, layer = torch.ones(2), nn.Linear(2, 2)
    careful = [
        compat.plain_operators_needed() is not None,
        compat.intercepted(),
        compat.profiled(),
        not compat.readable(tensor),
        compat.has_hooks(layer),
    ]
    if one_is_gone == "torch.compiler._is_exporting_flag":
        assert not any(careful)  # it is asked under torch.compile only
    else:
        assert sum(careful) == 1


def test_compiled_models_are_right_where_export_cannot_be_told_apart(monkeypatch):
    monkeypatch.setattr(compat, "MISSING", frozenset({"torch.compiler._is_exporting_flag"}))
    projected = torch.randn(1, 3, 5, 3, 2, 4)
    torch.compiler.reset()
    compiled = torch.compile(lambda x: local_attention(x, kernel_size=3), fullgraph=True, backend="eager")
    torch.testing.assert_close(compiled(projected), local_attention(projected, kernel_size=3))


@pytest.mark.parametrize("register", ["forward", "forward_pre", "full_backward", "full_backward_pre"])
def test_hooks_of_a_module_and_of_all_are_seen(register):
    layer = nn.Sequential(nn.Linear(2, 2))
    assert not compat.has_hooks(layer)
    handle = getattr(layer, f"register_{register}_hook")(lambda *arguments: None)
    assert compat.has_hooks(layer)
    assert not compat.has_hooks(layer[0])
    handle.remove()
    handle = getattr(nn.modules.module, f"register_module_{register}_hook")(lambda *arguments: None)
    assert compat.has_hooks(layer[0])
    handle.remove()
    assert not compat.has_hooks(layer[0])
