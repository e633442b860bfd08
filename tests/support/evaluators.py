"""Small language models that evaluate text, and their tokenizers."""

from pathlib import Path
from typing import Any

import pytest
import torch

END = "<|endoftext|>"
CONTEXT = 24


def extra(module: str) -> Any:
    """A module of the extra 'text'; without it the test is skipped."""
    return pytest.importorskip(module, reason="needs the extra 'text'")


def byte_tokenizer(transformers: Any, end: str = END) -> Any:
    tokenizers = extra("tokenizers")
    letters = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocab = {end: 0} | {letter: i + 1 for i, letter in enumerate(letters)} | {"th": 257}
    core = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=vocab, merges=[("t", "h")]))
    core.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = tokenizers.decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=core, bos_token=end, eos_token=end)


def save_gpt2(folder: Path) -> Path:
    """A random GPT-2 of two layers with a byte-level tokenizer, as save_pretrained writes it."""
    transformers = extra("transformers")
    byte_tokenizer(transformers).save_pretrained(folder)
    gpt2(transformers, vocab_size=258).save_pretrained(folder)
    return folder


def save_bert(folder: Path, kind: str = "BertModel", **options: Any) -> Any:
    """A random BERT with a byte-level tokenizer."""
    transformers = extra("transformers")
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.BertConfig(vocab_size=258, intermediate_size=16, **sizes, **options)
    model = getattr(transformers, kind)(config).eval()
    model.save_pretrained(folder)
    byte_tokenizer(transformers).save_pretrained(folder)
    return model


def gpt2(transformers: Any, **options: Any) -> Any:
    torch.manual_seed(0)
    sizes = {"n_positions": CONTEXT, "n_embd": 16, "n_layer": 2, "n_head": 2}
    ends = {"bos_token_id": 0, "eos_token_id": 0}
    # A wide initialisation: predictions far from uniform, so that an error shows.
    config = transformers.GPT2Config(**sizes, **ends, initializer_range=0.5, **options)
    return transformers.GPT2LMHeadModel(config)


def write_gguf(model: Any, tokenizer: Any, path: Path) -> None:
    """A Llama as the format has it, in which the halves of each rotary pair are interleaved."""
    gguf = extra("gguf")
    writer = gguf.GGUFWriter(path, "llama")
    c = model.config
    writer.add_context_length(c.max_position_embeddings)
    writer.add_embedding_length(c.hidden_size)
    writer.add_feed_forward_length(c.intermediate_size)
    writer.add_block_count(c.num_hidden_layers)
    writer.add_head_count(c.num_attention_heads)
    writer.add_head_count_kv(c.num_key_value_heads)
    writer.add_layer_norm_rms_eps(c.rms_norm_eps)
    writer.add_rope_freq_base(10_000.0)
    writer.add_vocab_size(c.vocab_size)
    vocab = tokenizer.get_vocab()
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(sorted(vocab, key=vocab.__getitem__))
    writer.add_token_types([3] + [1] * (len(vocab) - 1))
    writer.add_token_merges(["t h"])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(0)
    names = {
        "model.embed_tokens": "token_embd",
        "model.norm": "output_norm",
        "lm_head": "output",
        "model.layers.0.self_attn.q_proj": "blk.0.attn_q",
        "model.layers.0.self_attn.k_proj": "blk.0.attn_k",
        "model.layers.0.self_attn.v_proj": "blk.0.attn_v",
        "model.layers.0.self_attn.o_proj": "blk.0.attn_output",
        "model.layers.0.mlp.gate_proj": "blk.0.ffn_gate",
        "model.layers.0.mlp.up_proj": "blk.0.ffn_up",
        "model.layers.0.mlp.down_proj": "blk.0.ffn_down",
        "model.layers.0.input_layernorm": "blk.0.attn_norm",
        "model.layers.0.post_attention_layernorm": "blk.0.ffn_norm",
    }
    for name, weight in model.state_dict().items():
        short = names[name.removesuffix(".weight")]
        if short.endswith(("attn_q", "attn_k")):
            heads = weight.reshape(c.num_attention_heads, 2, -1, weight.shape[1])
            weight = heads.swapaxes(1, 2).reshape(weight.shape)
        writer.add_tensor(f"{short}.weight", weight.contiguous().numpy())
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
