"""The other half of a transformer's block."""

from timm.layers import trunc_normal_
from torch import Tensor, nn

from .checks import require_positive


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

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
