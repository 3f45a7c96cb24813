"""What the software of a stage does in its own way, as far as it changes memory.

Tangram's own runtime has the defaults. Measured runs of other stacks state some of these.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class MemoryOptions:
    """Choices of software.

    Attributes:
        attention_stated: Whether the attention kernel is known; else the upper estimate takes an unfused one.
        dropout: Whether there is dropout, whose masks are kept; None for what is usual of the layer's kind
            (:func:`tangram.cost.attention.has_dropout`).
        relu: Whether the activation is one whose output is all that backward needs.
        recomputed: Modules of every layer that backward runs again, besides the attention core, by
            Megatron-Core's names: ``layernorm``, ``mla_up_proj``, ``mlp``, ``moe_act``, ``moe``,
            ``shared_experts``.
        loss_copies: fp32 copies of the logits in the loss, over those of the stack's plain loss: 0 for a
            kernel that works in place, 2 for a compiled one that holds its input and output in fp32.
        deferred_heads: Micro-batches whose gradients of the logits wait for the head's weight gradient.
        further_losses: Losses besides the last head's (multi-token prediction) whose softmax waits, in fp32.
        deterministic: Whether products use deterministic algorithms, which take larger workspaces.
        grouped_products: Whether the products of experts run side by side, each with a workspace.
        fused_accumulation: Whether weight gradients are added to the accumulated ones by the product that
            makes them; frameworks then keep a placeholder of each shape.
        further_gradient_bytes: Per parameter, another copy of the gradients, sharded like them.
        weighs_outputs: Whether the router's probabilities weight the outputs of experts, which are kept for
            that; else it is the activations, as in Megatron-Core since 0.12.
        balanced_experts: Whether tokens are spread evenly over experts by force.
    """

    attention_stated: bool = True
    dropout: bool | None = None
    relu: bool = False
    recomputed: tuple[str, ...] = ()
    loss_copies: float = 1.0
    deferred_heads: float = 0.0
    further_losses: float = 0.0
    deterministic: bool = False
    grouped_products: bool = False
    fused_accumulation: bool = False
    further_gradient_bytes: float = 0.0
    weighs_outputs: bool = True
    balanced_experts: bool = False


PLAIN = MemoryOptions()
"""What Tangram's own runtime does."""
