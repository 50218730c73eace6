"""What training minimises. Each takes scores [requests, tools] and a mask of the same shape that is 1 at gold tools."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def multi_gold_softmax(scores: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropy between the softmax over all tools and an equal share for each gold tool."""
    return -((functional.log_softmax(scores, dim=1) * gold).sum(1) / gold.sum(1)).mean()


def sigmoid(scores: Tensor, gold: Tensor) -> Tensor:
    """Each tool on its own is right or wrong: gold tools do not compete, so a request may have any number of them."""
    each = functional.binary_cross_entropy_with_logits(scores, gold, reduction="none")
    return torch.sum(each, dim=1).mean()
