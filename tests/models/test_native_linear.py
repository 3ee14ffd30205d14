"""Native linear layers: the numbers of PyTorch's, each row as if alone, stored without loss."""

import pytest
import torch
from torch import nn

from pilotfish.errors import CorruptModelError, ExecutorUnavailableError, RowsError, UnsupportedModelError
from pilotfish.models.native_executor import native_module
from pilotfish.models.native_linear import NativeLinear, native_linear, use_native_linears
from tests.models.memory_weights import randomised


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 33), (32, 32), (40, 100), (576, 257)])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("half", [False, True])
def test_result_is_pytorchs(inputs, outputs, bias, half):
    linear = randomised(nn.Linear(inputs, outputs, bias=bias), seed=0)
    if half:
        linear.weight.data = linear.weight.data.bfloat16().float()
    native = NativeLinear(linear, threads=2)
    assert native.storage == ("bfloat16" if half else "float32")
    x = torch.randn(5, inputs, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        expected = nn.functional.linear(x.double(), linear.weight.double(), linear.bias.double() if bias else None)
    got = native(x)
    assert torch.allclose(got.double(), expected, atol=1e-5 * inputs)
    for row in range(5):
        assert torch.equal(native(x[row : row + 1])[0], got[row])
    assert native(x[:0]).shape == (0, outputs)
    assert torch.equal(native(x.t().contiguous().t()), got), "any strides"


@pytest.mark.parametrize(("inputs", "outputs"), [(1, 1), (7, 33), (40, 100), (576, 257)])
def test_a_given_storage_may_round_weights_and_inputs(inputs, outputs):
    linear = randomised(nn.Linear(inputs, outputs), seed=0)
    x = torch.randn(5, inputs, generator=torch.Generator().manual_seed(0))
    native = native_linear(linear, "bfloat16-compute")
    assert native is not None
    assert native.storage == "bfloat16-compute"
    with torch.no_grad():
        rounded = linear.weight.bfloat16().double()
        expected = nn.functional.linear(x.bfloat16().double(), rounded, linear.bias.double())
        assert torch.allclose(native(x).double(), expected, atol=1e-5 * inputs)
        for row in range(5):
            assert torch.equal(native(x[row : row + 1])[0], native(x)[row])
    assert native_linear(linear, "int8") is native_linear(linear, None) is None


def test_without_the_extension_there_is_no_native_layer(monkeypatch):
    def missing():
        raise ExecutorUnavailableError("not built")

    monkeypatch.setattr("pilotfish.models.native_linear.native_module", missing)
    assert native_linear(nn.Linear(2, 2), "float32") is None


def test_all_linears_of_a_module_are_exchanged():
    model = nn.Sequential(nn.Linear(4, 8), nn.ModuleList([nn.Sequential(nn.Linear(8, 3))])[0])
    x = torch.randn(2, 4)
    expected = model(x).detach()
    use_native_linears(model, threads=1)
    assert not any(isinstance(module, nn.Linear) for module in model.modules())
    assert torch.allclose(model(x), expected, atol=1e-5)


def test_what_cannot_be_exchanged_is_refused():
    with pytest.raises(UnsupportedModelError, match="float64"):
        use_native_linears(nn.Sequential(nn.Linear(2, 2, dtype=torch.float64)), threads=1)
    packed = native_module().PackedLinear(torch.zeros(2, 3), "float32")
    for x, out, threads in [((1, 2), (1, 2), 1), ((1, 3), (2, 2), 1), ((1, 3), (1, 3), 1), ((1, 3), (1, 2), 0)]:
        with pytest.raises(RowsError, match="expected"):
            packed.multiply(torch.zeros(x), torch.zeros(out), threads)
    with pytest.raises(CorruptModelError, match="int8"):
        native_module().PackedLinear(torch.zeros(2, 32), "int8")
