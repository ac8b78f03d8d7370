"""The two halves of a ViT's and DeiT's block: multi-head self-attention (ConViT Eq. 1–3) and feed-forward."""

from torch import Tensor, nn
from torch.nn import functional as F

from .. import functional as equations
from ..geometry import Grid
from .checks import require_divisible, require_positive, require_tokens
from .random import trunc_normal_


def initialise(*layers: nn.Linear) -> None:
    """The initial weights of a ViT's linear layers."""
    for layer in layers:
        trunc_normal_(layer.weight, std=0.02)
        if layer.bias is not None:
            nn.init.zeros_(layer.bias)


class MultiHead(nn.Module):
    """What attention layers over tokens share: heads side by side in one projection, and joined by another."""

    num_heads: int
    head_dim: int
    proj: nn.Linear
    proj_drop: nn.Dropout

    def project(self, x: Tensor) -> Tensor:
        """Tokens [B, N, dim] → query, key and value side by side, [B, N, 3, heads, head_dim]."""
        raise NotImplementedError

    def query_key_value(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Tokens [B, N, dim] → query, key and value [B, heads, N, head_dim]."""
        query, key, value = self.project(x).permute(2, 0, 3, 1, 4).unbind(0)
        return query, key, value

    def join(self, heads: Tensor) -> Tensor:
        """Values that the heads have gathered, [B, heads, N, head_dim] → tokens."""
        return self.proj_drop(self.proj(heads.transpose(1, 2).flatten(2)))


class SelfAttention(MultiHead):
    """concat_h[softmax(QKᵀ/√d) V] W_out + b_out over tokens [B, N, dim]. It knows nothing of positions."""

    def __init__(self, dim: int, num_heads: int, *, qkv_bias: bool = False, proj_drop: float = 0.0) -> None:
        super().__init__()
        self.dim, self.num_heads, self.head_dim = dim, num_heads, require_divisible(dim, num_heads)
        self.qkv = nn.Linear(dim, 3 * dim, bias=qkv_bias)
        self.proj = nn.Linear(dim, dim)
        self.proj_drop = nn.Dropout(proj_drop)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        initialise(self.qkv, self.proj)

    def project(self, x: Tensor) -> Tensor:
        return self.qkv(x).unflatten(-1, (3, self.num_heads, self.head_dim))

    def forward(self, x: Tensor, grid_size: Grid | None = None, need_weights: bool = False):
        """x [B, N, dim] → y, or (y, weights [B, heads, N, N]). Every attention takes a grid; this one ignores it."""
        require_tokens(x, self.dim)
        query, key, value = self.query_key_value(x)
        if need_weights:
            weights = equations.attention_weights(query, key)
            return self.join(weights @ value), weights
        return self.join(F.scaled_dot_product_attention(query, key, value))

    def extra_repr(self) -> str:
        return f"num_heads={self.num_heads}, head_dim={self.head_dim}"


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
        initialise(self.fc1, self.fc2)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))
