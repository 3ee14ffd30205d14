"""The least a forward pass can take on this machine: bytes over bandwidth, operations over peak.

Owns what a pass must read and compute, from the decoder's shape and its storage, and the machine's two measured
limits. Times no pass; `pass_cost.py` does. The model is that of Williams, Waterman and Patterson (2009),
https://doi.org/10.1145/1498765.1498785.
"""

from collections import Counter
from dataclasses import dataclass

from pilotfish.errors import ExecutorUnavailableError, InvalidInputError
from pilotfish.models.base import Executor
from pilotfish.models.config import DecoderConfig


@dataclass(frozen=True, slots=True)
class ExecutorFacts:
    """How an executor holds its model.

    Attributes:
        name: "native" or "torch".
        weights: storage of the matrices, such as "int8"; several joined by "+".
        threads: at work in a pass.
        weight_bytes: of all matrices.
        kv_value_bytes: of one number in the key-value cache.
        on_cpu: false where another device computes, which the CPU's limits say nothing about.
    """

    name: str
    weights: str
    threads: int
    weight_bytes: int
    kv_value_bytes: int
    on_cpu: bool = True


def executor_facts(executor: Executor) -> ExecutorFacts:
    """The facts of one of the two executors.

    Raises:
        InvalidInputError: it is another kind of executor.
    """

    from pilotfish.models.native_executor import NativeExecutor
    from pilotfish.models.torch_executor import TorchExecutor

    config = executor.config
    if isinstance(executor, NativeExecutor):
        values_per_page = 2 * config.num_layers * config.num_kv_heads * config.head_dim * executor.page_size
        value_bytes = executor.page_bytes // values_per_page
        return ExecutorFacts("native", executor.storage, executor.threads, executor.weight_bytes, value_bytes)
    if isinstance(executor, TorchExecutor):
        matrices = [parameter for parameter in executor.decoder.parameters() if parameter.ndim == 2]
        first = matrices[0]
        return ExecutorFacts(
            name="torch",
            weights=str(first.dtype).removeprefix("torch."),
            threads=executor.threads,
            weight_bytes=sum(matrix.numel() * matrix.element_size() for matrix in matrices),
            kv_value_bytes=first.element_size(),
            on_cpu=first.device.type == "cpu",
        )
    raise InvalidInputError(f"got an executor of type {type(executor).__name__}, expected the native or PyTorch one")


@dataclass(frozen=True, slots=True)
class MachineLimits:
    """What the machine was seen to reach.

    Attributes:
        bandwidth_bytes_per_second: reading memory beyond any cache.
        peak_flops: operations per second, a multiply-add counting two: of float32, or of bfloat16 products.
    """

    bandwidth_bytes_per_second: float
    peak_flops: float

    @classmethod
    def measure(cls, threads: int, weights: str = "float32") -> "MachineLimits":
        """Measures both, in about a third of a second.

        Args:
            threads: at work.
            weights: the storage that is multiplied; "bfloat16-compute" has its own peak.

        Raises:
            ExecutorUnavailableError: the native extension, which does it, is missing.
            InvalidInputError: `threads` is less than 1.
        """
        from pilotfish.models.native_executor import native_module

        if threads < 1:
            raise InvalidInputError(f"threads={threads}: expected at least 1")
        native = native_module()
        return cls(native.measure_bandwidth(threads), native.measure_flops(threads, weights == "bfloat16-compute"))

    @classmethod
    def measure_if_possible(cls, threads: int, weights: str = "float32") -> "MachineLimits | None":
        """As `measure`, but `None` without the native extension."""
        try:
            return cls.measure(threads, weights)
        except ExecutorUnavailableError:
            return None

    def highest(self, other: "MachineLimits") -> "MachineLimits":
        """The better of two measurements: whatever else the machine does can only lower them."""
        return MachineLimits(
            max(self.bandwidth_bytes_per_second, other.bandwidth_bytes_per_second),
            max(self.peak_flops, other.peak_flops),
        )


@dataclass(frozen=True, slots=True)
class Roofline:
    """The least time of a pass: max(bytes / bandwidth, operations / peak). Activations are taken to stay in cache."""

    config: DecoderConfig
    facts: ExecutorFacts
    limits: MachineLimits

    def seconds(self, rows: int, context: int, sequences: int = 1) -> float:
        """For a pass of `rows` rows with logits, dealt evenly to sequences of `context` committed tokens each."""
        return max(
            self.bytes_read(rows, context, sequences) / self.limits.bandwidth_bytes_per_second,
            self.operations(rows, context, sequences) / self.limits.peak_flops,
        )

    def bytes_read(self, rows: int, context: int, sequences: int = 1) -> float:
        """Weights once, and once each sequence's keys and values that some row sees."""
        linear, lookup = _linear_values(self.config), _lookup_values(self.config)
        weight_bytes = self.facts.weight_bytes * linear / (linear + lookup)
        own = rows / sequences
        positions = 0.0
        for window, layers in _windows(self.config).items():
            seen = context + own
            positions += layers * (seen if window is None else min(seen, window - 1 + own))
        values = 2 * self.config.num_kv_heads * self.config.head_dim * positions * sequences
        return weight_bytes + values * self.facts.kv_value_bytes

    def operations(self, rows: int, context: int, sequences: int = 1) -> float:
        """Linear layers, LM head and attention, a multiply-add counting two."""
        own = rows / sequences
        average = context + (own + 1) / 2  # positions a row sees, itself included
        seen = sum(
            layers * (average if window is None else min(average, window))
            for window, layers in _windows(self.config).items()
        )
        attention = 4 * self.config.num_heads * self.config.head_dim * seen
        return rows * (2 * _linear_values(self.config) + attention)


def _windows(config: DecoderConfig) -> Counter[int | None]:
    return Counter(layer.sliding_window for layer in config.layers)


def _linear_values(config: DecoderConfig) -> int:
    """Weights that every row is multiplied with, the LM head's included."""
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    layer = config.hidden_size * (2 * queries + 2 * keys + 3 * config.intermediate_size)
    return config.num_layers * layer + config.vocab_size * config.hidden_size


def _lookup_values(config: DecoderConfig) -> int:
    """Weights of which a row reads one line only: an embedding that is not also the LM head."""
    return 0 if config.tie_word_embeddings else config.vocab_size * config.hidden_size
