"""Twenty-four models of published packages, with random weights: what training teams deliver.

Each is the package's own code with its own interface; the few adapters below turn what no package
of compiled code can take or give (windows of a data loader, tables of features) into tensors. They
need `make corpus`'s environment.
"""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import importlib.util
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from artifacts.delivery import Lineage
from artifacts.steps import DeliverResult
from tasks.deliver import deliver

Inputs = tuple[tuple[Any, ...], dict[str, Any]]
_VOCABULARY, _FEATURES, _DENSE, _WIDTH, _HISTORY = 2000, 26, 13, 16, 30


@dataclass(frozen=True)
class CorpusModel:
    """A model's name and kind, its builder, its inputs for a batch, and the batch of its example.

    `options` are further arguments of `deliver`.
    """

    name: str
    kind: str
    build: Callable[[], nn.Module]
    inputs: Callable[[int], Inputs]
    batch: int = 4
    options: dict[str, Any] = field(default_factory=dict)

    def make(self) -> tuple[nn.Module, Inputs]:
        """Return the model, ready to be delivered, and its example; each time the same."""
        torch.manual_seed(0)
        module = self.build().eval().requires_grad_(False)
        torch.manual_seed(self.batch)
        return module, self.inputs(self.batch)

    def deliver(self, module: nn.Module, example: Inputs, folder: Path) -> DeliverResult:
        """Deliver what `make` has made to `folder`."""
        args, kwargs = example
        return deliver(
            module, args, folder, name=self.name.replace("_", "-"), example_kwargs=kwargs,
            lineage=Lineage("https://example.org/models", "0123abc"), **self.options,
        )  # fmt: skip


def images(size: int = 224) -> Callable[[int], Inputs]:
    """Return a maker of images, `[N, 3, size, size]`."""
    return lambda batch: ((torch.randn(batch, 3, size, size),), {})


def ids(*shape: int, high: int = _VOCABULARY) -> Tensor:
    """Return random ids from 1 to `high - 1`."""
    return torch.randint(1, high, shape)


def tokens(batch: int) -> Inputs:
    """Return token ids and a mask by keyword, `[N, 64]`; half of the first row is padding."""
    mask = torch.ones(batch, 64, dtype=torch.long)
    mask[0, 32:] = 0
    return (), {"input_ids": ids(batch, 64, high=900), "attention_mask": mask}


# Vision


def torchvision_model(name: str) -> Callable[[], nn.Module]:
    """Return a builder of one of torchvision's models."""

    def build() -> nn.Module:
        from torchvision import models

        return getattr(models, name)()  # type: ignore[no-any-return]

    return build


def vision_transformer() -> nn.Module:
    """Return torchvision's vision transformer, small."""
    from torchvision.models import VisionTransformer

    return VisionTransformer(224, 16, 6, 6, 384, 1536)  # type: ignore[no-any-return]


def timm_vit() -> nn.Module:
    """Return timm's vision transformer."""
    import timm

    return timm.create_model("vit_tiny_patch16_224", pretrained=False)  # type: ignore[no-any-return]


def unet() -> nn.Module:
    """Return a U-Net on a ResNet-18."""
    import segmentation_models_pytorch

    return segmentation_models_pytorch.Unet("resnet18", encoder_weights=None, classes=4)  # type: ignore[no-any-return]


def yolo() -> nn.Module:
    """Return YOLOv8's detector with its boxes alone."""
    from ultralytics.nn.tasks import DetectionModel

    return Picks(DetectionModel("yolov8n.yaml", verbose=False).eval(), 0)


# Language and speech


def hugging_face(model: str, config: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of one of Hugging Face's models."""

    def build() -> nn.Module:
        import transformers

        return getattr(transformers, model)(getattr(transformers, config)(**settings))  # type: ignore[no-any-return]

    return build


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


# Time series, recommenders, tables, graphs


def forecaster(module: str, name: str, **settings: Any) -> Callable[[], nn.Module]:
    """Return a builder of one of neuralforecast's models."""

    def build() -> nn.Module:
        # Its package wants the libraries of its automatic tuning, which no model file needs.
        spec = importlib.util.find_spec("neuralforecast")
        assert spec is not None
        for package in ("neuralforecast", "neuralforecast.models"):
            known = sys.modules.setdefault(package, types.ModuleType(package))
            folders = spec.submodule_search_locations or []
            known.__path__ = [f"{folder}/{package[15:]}" for folder in folders]
        kind = getattr(importlib.import_module(f"neuralforecast.models.{module}"), name)
        return Windows(kind(h=24, input_size=96, accelerator="cpu", **settings))

    return build


def rechub(module: str, name: str) -> Callable[[], nn.Module]:
    """Return a builder of one of torch-rechub's models."""

    def build() -> nn.Module:
        from torch_rechub import models
        from torch_rechub.basic.features import DenseFeature, SequenceFeature, SparseFeature

        importlib.import_module(f"torch_rechub.models.{module}")
        kind = getattr(getattr(models, module), name)
        users = [SparseFeature(f"u{i}", _VOCABULARY, _WIDTH) for i in range(4)]
        item = [SparseFeature("item", _VOCABULARY, _WIDTH)]
        tower = {"dims": [128, 64], "activation": "prelu"}
        if name == "DeepFM":
            sparse = [SparseFeature(f"c{i}", _VOCABULARY, _WIDTH) for i in range(_FEATURES)]
            dense = [DenseFeature(f"d{i}") for i in range(_DENSE)]
            layers = {"dims": [256, 128], "dropout": 0.2, "activation": "relu"}
            return Columns(kind(sparse + dense, sparse, layers))
        if name == "DIN":
            history = SequenceFeature(
                "hist", _VOCABULARY, _WIDTH, pooling="concat", shared_with="item"
            )
            return Sequences(kind(users, [history], item, {"dims": [200, 80]}, {"dims": [36]}))
        pooled = SequenceFeature("hist", _VOCABULARY, _WIDTH, pooling="mean", padding_idx=0)
        return Sequences(kind([*users, pooled], item, tower, dict(tower)))

    return build


def deepctr() -> nn.Module:
    """Return deepctr-torch's DeepFM, which takes ids and numbers in one table."""
    from deepctr_torch.inputs import DenseFeat, SparseFeat
    from deepctr_torch.models import DeepFM

    sparse = [SparseFeat(f"c{i}", _VOCABULARY, _WIDTH) for i in range(_FEATURES)]
    columns = [*sparse, *(DenseFeat(f"d{i}", 1) for i in range(_DENSE))]
    return DeepFM(columns, columns)  # type: ignore[no-any-return]


def dlrm() -> nn.Module:
    """Return torchrec's DLRM with plain embedding tables."""
    sys.meta_path.insert(0, MissingKernels())
    from torchrec.models.dlrm import DenseArch, InteractionArch, OverArch

    return RankingModel(
        DenseArch(_DENSE, [64, _WIDTH]),
        InteractionArch(_FEATURES),
        OverArch(_WIDTH + (_FEATURES * (_FEATURES + 1)) // 2, [128, 64, 1]),
    )


def table_transformer() -> nn.Module:
    """Return the feature tokenizer with a transformer, as its authors publish it."""
    from rtdl_revisiting_models import FTTransformer

    return FTTransformer(  # type: ignore[no-any-return]
        n_cont_features=12, cat_cardinalities=[10, 20, 30], d_out=1,
        **FTTransformer.get_default_kwargs(),
    )  # fmt: skip


def table_resnet() -> nn.Module:
    """Return the residual network for tables, as its authors publish it."""
    from rtdl_revisiting_models import ResNet

    return ResNet(  # type: ignore[no-any-return]
        d_in=40, d_out=1, n_blocks=4, d_block=192, d_hidden=None, d_hidden_multiplier=2.0,
        dropout1=0.3, dropout2=0.0,
    )  # fmt: skip


def graph_network() -> nn.Module:
    """Return two dense graph convolutions and a head."""
    from torch_geometric.nn import DenseGCNConv

    return GraphClassifier([DenseGCNConv(32, 128), DenseGCNConv(128, 128)])


class Picks(nn.Module):
    """Returns one of a model's several outputs."""

    def __init__(self, model: nn.Module, place: int) -> None:
        super().__init__()
        self.model, self.place = model, place

    def forward(self, x: Tensor) -> Tensor:
        return self.model(x)[self.place]  # type: ignore[no-any-return]


class Pools(nn.Module):
    """An encoder and a pooling, which speak in dictionaries."""

    def __init__(self, encoder: nn.Module, pooling: nn.Module) -> None:
        super().__init__()
        self.encoder, self.pooling = encoder, pooling

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> dict[str, Tensor]:
        hidden = self.encoder(input_ids=input_ids, attention_mask=attention_mask).last_hidden_state
        given = {"token_embeddings": hidden, "attention_mask": attention_mask}
        return {"sentence_embedding": self.pooling(given)["sentence_embedding"]}


class Windows(nn.Module):
    """Makes the windows of neuralforecast's loader from a series, `[N, L, 1]`."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, series: Tensor) -> Any:
        empty = {"futr_exog": None, "hist_exog": None, "stat_exog": None}
        mask = torch.ones_like(series)
        return self.model({"insample_y": series, "insample_mask": mask, **empty})


class Columns(nn.Module):
    """Hands the columns of two tables, `[N, 26]` and `[N, 13]`, over by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, categories: Tensor, numbers: Tensor) -> Any:
        named = {f"c{i}": categories[:, i] for i in range(_FEATURES)}
        return self.model(named | {f"d{i}": numbers[:, i] for i in range(_DENSE)})


class Sequences(nn.Module):
    """Hands a user `[N, 4]`, a history `[N, 30]` and an item `[N]` over by name."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, user: Tensor, history: Tensor, item: Tensor) -> Any:
        named = {f"u{i}": user[:, i] for i in range(4)}
        return self.model(named | {"hist": history, "item": item})


class RankingModel(nn.Module):
    """The three parts of a DLRM around plain embedding bags."""

    def __init__(self, dense: nn.Module, interaction: nn.Module, over: nn.Module) -> None:
        super().__init__()
        self.dense, self.interaction, self.over = dense, interaction, over
        bags = [nn.EmbeddingBag(_VOCABULARY, _WIDTH, mode="sum") for _ in range(_FEATURES)]
        self.tables = nn.ModuleList(bags)

    def forward(self, numbers: Tensor, categories: Tensor) -> Any:
        found = [bag(categories[:, i : i + 1]) for i, bag in enumerate(self.tables)]
        return self.over(self.interaction(self.dense(numbers), torch.stack(found, 1)))


class GraphClassifier(nn.Module):
    """Dense graph convolutions, a mean over the nodes and a linear head."""

    def __init__(self, convolutions: list[nn.Module]) -> None:
        super().__init__()
        self.convolutions, self.head = nn.ModuleList(convolutions), nn.Linear(128, 5)

    def forward(self, nodes: Tensor, adjacency: Tensor) -> Any:
        for convolution in self.convolutions:
            nodes = torch.relu(convolution(nodes, adjacency))
        return self.head(nodes.mean(1))


class MissingKernels(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Stands in for fbgemm_gpu, which torchrec imports and its dense layers never call.

    Its binaries fit one minor version of torch each, and none is published for the newest.
    """

    def find_spec(self, name: str, *_: object) -> importlib.machinery.ModuleSpec | None:
        if name.partition(".")[0] != "fbgemm_gpu":
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> types.ModuleType:
        class Anything(type):
            def __getattr__(cls, name: str) -> type:
                if name.startswith("__"):
                    raise AttributeError(name)
                return Anything(name, (), {})

        module = types.ModuleType(spec.name)
        module.__dict__["__getattr__"] = lambda name: getattr(Anything("kernels", (), {}), name)
        return module

    def exec_module(self, module: types.ModuleType) -> None:
        """Leave the module as it was made."""


def _sequences(batch: int) -> Inputs:
    return (ids(batch, 4), ids(batch, _HISTORY), ids(batch)), {}


def _table(batch: int) -> Inputs:
    return (torch.cat([ids(batch, _FEATURES).float(), torch.rand(batch, _DENSE)], 1),), {}


def _graphs(batch: int) -> Inputs:
    return (torch.randn(batch, 40, 32), (torch.rand(batch, 40, 40) > 0.8).float()), {}


_TOKENS = {"ranges": {"input_ids": (0, 4999), "attention_mask": (0, 1)}}

MODELS = (
    CorpusModel("resnet18", "vision", torchvision_model("resnet18"), images()),
    CorpusModel("mobilenet_v3_small", "vision", torchvision_model("mobilenet_v3_small"),
                images(), 8),
    CorpusModel("vit_small", "vision", vision_transformer, images()),
    CorpusModel("efficientnet_b0", "vision", torchvision_model("efficientnet_b0"), images()),
    CorpusModel("timm_vit_tiny", "vision", timm_vit, images()),
    CorpusModel("unet_resnet18", "vision", unet, images(256), 2),
    CorpusModel("yolov8n", "vision", yolo, images(320), 2),
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
    CorpusModel("lstm_forecaster", "time series", forecaster("lstm", "LSTM"),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 64),
    CorpusModel("tft", "time series", forecaster("tft", "TFT", hidden_size=64),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 32),
    CorpusModel("patchtst", "time series", forecaster("patchtst", "PatchTST"),
                lambda batch: ((torch.randn(batch, 96, 1),), {}), 64),
    CorpusModel("rechub_deepfm", "recommender", rechub("ranking", "DeepFM"),
                lambda batch: ((ids(batch, _FEATURES), torch.rand(batch, _DENSE)), {}), 256),
    CorpusModel("rechub_din", "recommender", rechub("ranking", "DIN"), _sequences, 128),
    CorpusModel("rechub_dssm", "recommender", rechub("matching", "DSSM"), _sequences, 256),
    CorpusModel("deepctr_deepfm", "recommender", deepctr, _table, 256),
    CorpusModel("dlrm", "recommender", dlrm,
                lambda batch: ((torch.rand(batch, _DENSE), ids(batch, _FEATURES)), {}), 256),
    CorpusModel("ft_transformer", "tabular", table_transformer,
                lambda batch: ((torch.randn(batch, 12), ids(batch, 3, high=10)), {}), 128),
    CorpusModel("table_resnet", "tabular", table_resnet,
                lambda batch: ((torch.randn(batch, 40),), {}), 256),
    CorpusModel("graph_classifier", "graph", graph_network, _graphs, 32),
)  # fmt: skip
