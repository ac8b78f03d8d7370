"""The other half of a transformer's block."""

from timm.layers import trunc_normal_
from torch import Tensor, nn
from torch.nn import functional as F

from ..kernels.compat import intercepted, plain_operators_needed
from .checks import require_positive
from .linear import apply_linear
from .watched import is_bare


class FeedForward(nn.Module):
    """W₂ GELU(W₁ x + b₁) + b₂ over tokens [B, N, dim], under the names that every checkpoint has for it."""

    def __init__(self, dim: int, hidden_dim: int, *, drop: float = 0.0) -> None:
        super().__init__()
        require_positive(dim=dim, hidden_dim=hidden_dim)
        self.fc1 = nn.Linear(dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, dim)
        self.drop = nn.Dropout(drop)

    def reset_parameters(self) -> None:
        """Called by the model that this belongs to, once all of it is there."""
        for linear in (self.fc1, self.fc2):
            trunc_normal_(linear.weight, std=0.02)
            nn.init.zeros_(linear.bias)

    def _activate(self, hidden: Tensor) -> Tensor:
        """GELU, written over its argument where nobody needs that any more.

        The hidden layer is a model's largest tensor by far. With a second one glibc gives the memory of both back to
        the system in each block, and on a CPU getting it again, page by page, took a fifth of ConViT-Ti's time.
        """
        ours_alone = type(hidden) is Tensor and is_bare(self.fc1, nn.Linear) and is_bare(self.act, nn.GELU)
        if not ours_alone or hidden.requires_grad or intercepted() or plain_operators_needed() is not None:
            return self.act(hidden)
        return F.gelu(hidden, approximate=self.act.approximate, out=hidden)  # type: ignore[call-arg]

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.drop(self._activate(apply_linear(self.fc1, x)))
        return self.drop(apply_linear(self.fc2, hidden))
