"""Encoders and a decoder of text, and two of speech."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from tests.studies.corpus.models.model import CorpusModel, Inputs, ids

_TOKENS = {"ranges": {"input_ids": (0, 4999), "attention_mask": (0, 1)}}
_BERT = {"vocab_size": 5000, "hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 4,
         "intermediate_size": 1024}  # fmt: skip
_GPT2 = {"vocab_size": 5000, "n_embd": 256, "n_layer": 4, "n_head": 4, "n_positions": 128,
         "use_cache": False}  # fmt: skip
_T5 = {"vocab_size": 5000, "d_model": 256, "d_kv": 64, "d_ff": 1024, "num_layers": 4,
       "num_heads": 4}  # fmt: skip
_WAV2VEC2 = {
    "hidden_size": 192, "num_hidden_layers": 4, "num_attention_heads": 4,
    "intermediate_size": 768, "conv_dim": (128,) * 7, "num_conv_pos_embeddings": 32,
    "num_conv_pos_embedding_groups": 4, "vocab_size": 32,
}  # fmt: skip
_WHISPER = {
    "d_model": 256, "encoder_layers": 4, "encoder_attention_heads": 4, "encoder_ffn_dim": 1024,
    "decoder_layers": 1, "decoder_attention_heads": 4, "max_source_positions": 500,
    "vocab_size": 1000, "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2,
    "decoder_start_token_id": 1,
}  # fmt: skip


def tokens(batch: int) -> Inputs:
    """Return token ids and a mask by keyword, `[N, 64]`; half of the first row is padding."""
    mask = torch.ones(batch, 64, dtype=torch.long)
    mask[0, 32:] = 0
    return (), {"input_ids": ids(batch, 64, high=900), "attention_mask": mask}


def hugging_face(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of one of Hugging Face's models."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))  # type: ignore[no-any-return]

    return build


def sentence_encoder() -> nn.Module:
    """Return a BERT with sentence-transformers' mean pooling."""
    import transformers
    from sentence_transformers.models import Pooling

    return Pools(
        transformers.BertModel(transformers.BertConfig(**_BERT)), Pooling(256, pooling_mode="mean")
    )


def whisper_encoder() -> nn.Module:
    """Return Whisper's encoder."""
    whisper = hugging_face("WhisperModel", "WhisperConfig", **_WHISPER)()
    return whisper.get_submodule("encoder")


class Pools(nn.Module):
    """An encoder and a pooling, which speak in dictionaries."""

    def __init__(self, encoder: nn.Module, pooling: nn.Module) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        given = {"token_embeddings": hidden, "attention_mask": attention_mask}
        return {"sentence_embedding": self.pooling(given)["sentence_embedding"]}


LANGUAGE = (
    CorpusModel("bert", "language", hugging_face(
        "BertForSequenceClassification", "BertConfig", **_BERT), tokens, 8, _TOKENS),
    CorpusModel("gpt2", "language", hugging_face(
        "GPT2LMHeadModel", "GPT2Config", **_GPT2), tokens, 4, _TOKENS),
    CorpusModel("t5_encoder", "language", hugging_face(
        "T5EncoderModel", "T5Config", **_T5), tokens, 8, _TOKENS),
    CorpusModel("sentence_encoder", "language", sentence_encoder, tokens, 8, _TOKENS),
    CorpusModel("wav2vec2", "speech", hugging_face(
        "Wav2Vec2ForCTC", "Wav2Vec2Config", **_WAV2VEC2),
        lambda batch: ((torch.randn(batch, 16000),), {}), 2),
    CorpusModel("whisper_encoder", "speech", whisper_encoder,
                lambda batch: ((torch.randn(batch, 80, 1000),), {}), 2),
)  # fmt: skip
