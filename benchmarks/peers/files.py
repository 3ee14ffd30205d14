"""One model in the storages that engines can share: GGUF files in F32, BF16 and Q8_0, and a Hugging Face directory.

Values come from the given GGUF, dequantised; F32 holds them exactly, the others round them. Only speed is compared on
these files, never text.
"""

from pathlib import Path

import gguf
from gguf import quants

from pilotfish.models.gguf_file import GgufFile

GGUF_TYPES = {"float32": "F32", "bfloat16": "BF16", "int8": "Q8_0"}
FILE_TYPES = {"F32": 0, "BF16": 32, "Q8_0": 7}


def write_gguf(source: Path, target: Path, type_name: str) -> Path:
    """Writes `source` with all matrices in another type, norms in F32 and the metadata as it was."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key in ("general.architecture", "general.file_type"):
            continue
        element = field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), field.types[0], sub_type=element)
    writer.add_file_type(FILE_TYPES[type_name])
    for tensor in reader.tensors:
        values = quants.dequantize(tensor.data, tensor.tensor_type)
        kind = gguf.GGMLQuantizationType[type_name if len(tensor.shape) == 2 else "F32"]
        writer.add_tensor(tensor.name, quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return target


def write_huggingface(source: Path, directory: Path) -> Path:
    """Writes a Llama model of a GGUF file as a float32 Hugging Face directory."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    file = GgufFile(source)
    shape, metadata = file.config, file.header.metadata
    if metadata["general.architecture"] != "llama":
        raise SystemExit(f"{source} is {metadata['general.architecture']}, this comparison knows llama only")
    config = LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.context_length,
        rms_norm_eps=shape.norm_eps,
        rope_parameters={"rope_type": "default", "rope_theta": metadata["llama.rope.freq_base"]},
        tie_word_embeddings=shape.tie_word_embeddings,
        bos_token_id=None,
        eos_token_id=None,
    )
    model = LlamaForCausalLM(config).to(torch.float32)
    tensors = {name: file.weights.read(name) for name in file.weights.names()}
    missing = model.load_state_dict(tensors, strict=False)
    assert missing.unexpected_keys == []
    assert set(missing.missing_keys) <= {"lm_head.weight"}
    model.tie_weights()
    model.save_pretrained(directory)
    return directory
