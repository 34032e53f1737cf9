"""Reads a model configuration of Triton's as the server does: by protobuf's own text format.

The fields, their types and numbers are those of `model_config.proto` in
triton-inference-server/common, commit 83adf7c, as far as a configuration of ours has them; any
other field, type or value is an error of protobuf's reader.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, text_format

_PACKAGE = "inference"
_ENUMS = {
    "DataType": {
        "TYPE_INVALID": 0, "TYPE_BOOL": 1, "TYPE_UINT8": 2, "TYPE_UINT16": 3, "TYPE_UINT32": 4,
        "TYPE_UINT64": 5, "TYPE_INT8": 6, "TYPE_INT16": 7, "TYPE_INT32": 8, "TYPE_INT64": 9,
        "TYPE_FP16": 10, "TYPE_FP32": 11, "TYPE_FP64": 12, "TYPE_STRING": 13, "TYPE_BF16": 14,
    },
    "Kind": {"KIND_AUTO": 0, "KIND_GPU": 1, "KIND_CPU": 2, "KIND_MODEL": 3},
}  # fmt: skip
# Per message: each field's type, its number, and whether it is repeated.
_MESSAGES: dict[str, dict[str, tuple[str, int, bool]]] = {
    "Specific": {"versions": ("int64", 1, True)},
    "ModelVersionPolicy": {"specific": ("Specific", 3, False)},
    "ModelInstanceGroup": {"kind": ("Kind", 4, False), "count": ("int32", 2, False)},
    "ModelInput": {
        "name": ("string", 1, False), "data_type": ("DataType", 2, False),
        "dims": ("int64", 4, True),
    },
    "ModelOutput": {
        "name": ("string", 1, False), "data_type": ("DataType", 2, False),
        "dims": ("int64", 3, True),
    },
    "ModelConfig": {
        "name": ("string", 1, False), "platform": ("string", 2, False),
        "version_policy": ("ModelVersionPolicy", 3, False), "max_batch_size": ("int32", 4, False),
        "input": ("ModelInput", 5, True), "output": ("ModelOutput", 6, True),
        "instance_group": ("ModelInstanceGroup", 7, True),
        "default_model_filename": ("string", 8, False), "backend": ("string", 17, False),
    },
}  # fmt: skip


def read_config(text: str) -> Any:
    """Return the configuration; raise `text_format.ParseError` for what the server can't read."""
    pool = descriptor_pool.DescriptorPool()
    pool.Add(_file())
    described = pool.FindMessageTypeByName(f"{_PACKAGE}.ModelConfig")
    return text_format.Parse(text, message_factory.GetMessageClass(described)())


def _file() -> descriptor_pb2.FileDescriptorProto:
    file = descriptor_pb2.FileDescriptorProto(
        name="model_config.proto", package=_PACKAGE, syntax="proto3"
    )
    for name, values in _ENUMS.items():
        enum = file.enum_type.add(name=name)
        for value, number in values.items():
            enum.value.add(name=value, number=number)
    for name, fields in _MESSAGES.items():
        message = file.message_type.add(name=name)
        for field, (kind, number, repeated) in fields.items():
            _add(message, field, kind, number, repeated=repeated)
    return file


def _add(
    message: descriptor_pb2.DescriptorProto, name: str, kind: str, number: int, *, repeated: bool
) -> None:
    types = descriptor_pb2.FieldDescriptorProto
    field = message.field.add(name=name, number=number)
    field.label = types.LABEL_REPEATED if repeated else types.LABEL_OPTIONAL
    if kind in _ENUMS or kind in _MESSAGES:
        field.type = types.TYPE_ENUM if kind in _ENUMS else types.TYPE_MESSAGE
        field.type_name = f".{_PACKAGE}.{kind}"
    else:
        field.type = types.Type.Value(f"TYPE_{kind.upper()}")
