"""Reads and writes model folders: safetensors shards, their index, and the files beside them."""

import json
import os
import shutil
import struct

import torch

TYPES = {"BF16": torch.bfloat16, "F32": torch.float32, "I64": torch.int64}
INDEX = "model.safetensors.index.json"
OTHER_FILES = ("config.json", "tokenizer.json", "tokenizer_config.json", "generation_config.json",
               "lexicon.json")


def _read_shard(path):
    tensors = {}
    with open(path, "rb") as file:
        header = json.loads(file.read(struct.unpack("<Q", file.read(8))[0]))
        data = bytearray(file.read())
    for name, item in header.items():
        if name == "__metadata__":
            continue
        begin, end = item["data_offsets"]
        dtype = TYPES[item["dtype"]]
        tensors[name] = torch.frombuffer(data[begin:end], dtype=dtype).reshape(item["shape"])
    return tensors


def read_weight_map(model_dir):
    with open(os.path.join(model_dir, INDEX), encoding="utf-8") as file:
        return json.load(file)["weight_map"]


def read_tensors(model_dir, specs):
    """Name to tensor, widened to f32 except I64. ValueError if names or shapes are not `specs`."""
    found = {}
    for shard in sorted(set(read_weight_map(model_dir).values())):
        found.update(_read_shard(os.path.join(model_dir, shard)))
    wanted = {spec.name: spec.shape for spec in specs}
    for name in sorted(wanted.keys() ^ found.keys()):
        raise ValueError(f"{model_dir}: {name} is {'missing' if name in wanted else 'unknown'}")
    for name, shape in wanted.items():
        if tuple(found[name].shape) != shape:
            raise ValueError(f"{model_dir}: {name} is {tuple(found[name].shape)}, not {shape}")
    return {name: t if t.dtype == torch.int64 else t.float() for name, t in found.items()}


def _tensor_bytes(tensor):
    return bytes(tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes())


def _write_shard(path, tensors, types):
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        blob = _tensor_bytes(tensors[name].to(TYPES[types[name]]))
        header[name] = {"dtype": types[name], "shape": list(tensors[name].shape),
                        "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.writelines(blobs)
    return at


def write_model(out_dir, base_dir, tensors, specs):
    """Shards as in `base_dir`, whose configuration and tokenizer are copied."""
    os.makedirs(out_dir, exist_ok=True)
    types = {spec.name: spec.dtype for spec in specs}
    weight_map = read_weight_map(base_dir)
    total = 0
    for shard in sorted(set(weight_map.values())):
        part = {name: tensors[name].cpu() for name, file in weight_map.items() if file == shard}
        total += _write_shard(os.path.join(out_dir, shard), part, types)
    with open(os.path.join(out_dir, INDEX), "w", encoding="utf-8") as file:
        json.dump({"metadata": {"total_size": total}, "weight_map": weight_map}, file, indent=1)
    for name in OTHER_FILES:
        shutil.copyfile(os.path.join(base_dir, name), os.path.join(out_dir, name))
