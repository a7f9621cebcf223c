"""Other names of keys in config.json, which transformers takes for the same.

Source: ``attribute_map`` of the configuration classes of transformers 5.24.
"""

from __future__ import annotations

from edgerun_export.architectures.decoder.spec import Config

_LOCAL, _PLAIN, _ROUTED = "num_local_experts", "num_experts", "n_routed_experts"
_CHOSEN = "num_experts_per_tok"
_ALIASES: dict[str, dict[str, str]] = {
    **dict.fromkeys(("gpt_oss", "mellum", "minimax_m2", "mixtral"), {_PLAIN: _LOCAL}),
    **dict.fromkeys(("flex_olmo", "hy_v3", "olmoe"), {_LOCAL: _PLAIN}),
    **dict.fromkeys(("deepseek_v3", "dots1", "glm4_moe", "mistral4"), {_LOCAL: _ROUTED}),
    **dict.fromkeys(("glm4_moe_lite", "nemotron_h", "solar_open"), {_LOCAL: _ROUTED}),
    "deepseek_v2": {_PLAIN: _ROUTED},
    "ernie4_5_moe": {_PLAIN: "moe_num_experts", _CHOSEN: "moe_k"},
    "hunyuan_v1_moe": {_LOCAL: _PLAIN, _CHOSEN: "moe_topk"},
}


def with_own_names(name: str, config: Config) -> Config:
    """The same with each key under the name that its architecture reads, where that is absent.

    Args:
        name: the model_type.
        config: keys of config.json.
    """
    aliases = _ALIASES.get(name, {}).items()
    more = {
        own: config[alias]
        for alias, own in aliases
        if config.get(own) is None and config.get(alias) is not None
    }
    return {**config, **more} if more else config
