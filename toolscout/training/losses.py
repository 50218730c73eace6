"""Loss functions over scores [requests, tools] and a mask of the same shape that is 1 at gold tools."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional


def multi_gold_softmax(scores: Tensor, gold: Tensor) -> Tensor:
    """Cross-entropy between the softmax over all tools and an equal share for each gold tool.

    The multiple negatives ranking loss is the case of a batch of pairs: tool i is the only gold tool of request i.
    """
    return -((functional.log_softmax(scores, dim=1) * gold).sum(1) / gold.sum(1)).mean()


def sigmoid(scores: Tensor, gold: Tensor) -> Tensor:
    """Binary cross-entropy of each tool, summed over tools: gold tools do not compete with each other."""
    each = functional.binary_cross_entropy_with_logits(scores, gold, reduction="none")
    return torch.sum(each, dim=1).mean()
