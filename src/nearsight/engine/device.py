"""Device, precision and compilation, chosen from the recipe and the machine."""

from __future__ import annotations

import os

import torch

from nearsight.recipes.recipe import Recipe


def pick_device(wish: str, local_rank: int = 0) -> torch.device:
    """The device a recipe asks for; ``auto`` takes CUDA, then Apple's, then the CPU."""
    if wish == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps" if torch.backends.mps.is_available() else "cpu")
    try:
        device = torch.device(wish)
    except RuntimeError as error:
        raise ValueError(f"there is no device {wish!r}; use cpu, cuda, cuda:1 or mps") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError("--device cuda: this PyTorch sees no CUDA device; use --device cpu")
    return torch.device("cuda", local_rank) if device.type == "cuda" and device.index is None else device


def pick_precision(wish: str, device: torch.device) -> torch.dtype:
    """The dtype of the forward pass."""
    if wish == "auto":
        return torch.bfloat16 if device.type == "cuda" and torch.cuda.is_bf16_supported() else torch.float32
    if wish == "fp16" and device.type == "cpu":
        raise ValueError("--precision fp16 needs a GPU; use fp32 or bf16 on the CPU")
    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[wish]


def compiles(recipe: Recipe, device: torch.device) -> bool:
    """Whether torch.compile is used: on request, and on GPUs unless it is declined."""
    return recipe.compile == "on" or (recipe.compile == "auto" and device.type == "cuda")


def prepare_torch(recipe: Recipe, device: torch.device) -> None:
    """Process-wide switches that trade exactness for speed, or the other way round."""
    # cuDNN's attention, which torch ≥ 2.11 prefers on Hopper, can return NaN gradients for sound inputs of 64 tokens
    # (mod 128): pytorch/pytorch#196678. The other fused kernels give the right ones.
    torch.backends.cuda.enable_cudnn_sdp(False)
    torch.backends.cudnn.benchmark = device.type == "cuda" and not recipe.deterministic
    torch.set_float32_matmul_precision("highest" if recipe.deterministic or device.type == "cpu" else "high")
    if recipe.deterministic:
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
    torch.use_deterministic_algorithms(recipe.deterministic)
