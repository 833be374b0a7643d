"""The operators of attention's kernels, as compiled code calls them, told as the step file has
attention: one call, whatever the kernel."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch


class AttentionCall(NamedTuple):
    op: str
    args: list[Any]
    kwargs: dict[str, Any]
    #: Of the operator's, in the order in which attention is told.
    results: list[torch.Tensor]


def attention_call(
    func: Any, args: Any, kwargs: dict[str, Any], result: Any
) -> AttentionCall | None:
    """None for any other operator."""
    name = func.__name__.split(".")[0]
    if not name.startswith("_scaled_dot_product_") or not isinstance(result, (tuple, list)):
        return None
    arguments = func._schema.arguments
    given = {arg.name: arg.default_value for arg in arguments if arg.has_default_value()}
    given.update(zip((arg.name for arg in arguments), args))
    given.update(kwargs)
    named = {"scale": given["scale"]} if given.get("scale") is not None else {}
    if name in _FORWARDS:
        told = [given[key] for key in ("query", "key", "value")]
        told += [given.get("attn_bias"), given.get("dropout_p", 0.0), given.get("is_causal", False)]
        return AttentionCall("plimsoll.attention", told, named, [result[0], result[1]])
    if name not in _BACKWARDS:
        return None
    grads = [grad for grad in result[:3] if isinstance(grad, torch.Tensor)]
    bias = given.get("attn_bias")
    wanted = [True, True, True, False]
    told = [given.get("grad_out", given.get("grad_out_")), given["query"], given["key"]]
    told += [given["value"], bias, given["out"], given["logsumexp"]]
    told += [given.get("dropout_p", 0.0), given.get("is_causal", False), wanted]
    return AttentionCall("plimsoll.attention_backward", told, named, grads)


_KERNELS = ("flash", "efficient", "cudnn")
_FORWARDS = {f"_scaled_dot_product_{kernel}_attention" for kernel in _KERNELS}
_BACKWARDS = {f"{forward}_backward" for forward in _FORWARDS}
