"""Values in place of text: `pooler_options` are what users ask of a model, a `PoolingConfig` is what came of that and
of its files (`config/resolve_pooling.py`). Imports core and `command_line`; what may import `config` may import it."""

from cadence.config.pooling.pooling_config import DECODER, PLAIN_TEXT, PoolingConfig, TextForm

__all__ = ["DECODER", "PLAIN_TEXT", "PoolingConfig", "TextForm"]
