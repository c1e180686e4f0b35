"""The model side: weights, tokenizer, one Llama-family decoder, attention and sampling.

This package imports nothing by itself: `minserve.models.config` and `minserve.models.registry`
are used without torch.
"""
