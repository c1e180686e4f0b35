"""Interactive pictures: ipywidgets around the plots, and the plain picture where there are none."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from html import escape
from typing import Any

from minserve.kv.estimate import DTYPE_BYTES, Capacity, KVShape
from minserve.learn.plots import Picture, capacity_curve, reused_blocks, tradeoff

# Shapes as in each model's published config.json: layers, KV heads, head dim.
SHAPES = {
    "northstar-nano": KVShape(6, 2, 64),
    "SmolLM2-135M": KVShape(30, 3, 64),
    "Llama-2-7B": KVShape(32, 32, 128),
    "Llama-3.1-8B": KVShape(32, 8, 128),
    "Llama-3.1-70B": KVShape(80, 8, 128),
}


def kv_picture(
    model: str = "Llama-3.1-8B", dtype: str = "float16", context: int = 3000, free_gb: int = 24
) -> Picture:
    """How many requests fit, for one model and setting, beside the same model at int8."""
    shape, free_bytes = SHAPES[model], free_gb * 10**9
    curves = {f"{model}, {dtype}": shape.bytes_per_token(dtype)}
    if dtype != "int8":
        curves[f"{model}, int8"] = shape.bytes_per_token("int8")
    return capacity_curve(curves, free_bytes, context, f"{free_gb} GB free for the KV cache")


def kv_sum(model: str, dtype: str, context: int, free_gb: int) -> str:
    """The calculation in figures, as HTML."""
    shape, free_bytes = SHAPES[model], free_gb * 10**9
    per_token = shape.bytes_per_token(dtype)
    capacity = Capacity(per_token, context, free_bytes)
    scales = " + its scales" if dtype == "int8" else ""
    return (
        f"<p style='margin:.4em 0'>2 &times; {shape.num_layers} layers &times; "
        f"{shape.num_kv_heads} KV heads &times; {shape.head_dim} values &times; "
        f"{DTYPE_BYTES[dtype]} bytes{scales} = <b>{per_token:,} bytes per token</b><br>"
        f"{per_token:,} &times; {context:,} tokens = "
        f"<b>{capacity.bytes_per_request / 1e6:,.0f} MB per request</b><br>"
        f"{free_gb} GB hold {capacity.total_tokens:,} tokens: "
        f"<b>{capacity.concurrent_requests:,} requests</b> of {escape(f'{context:,}')} tokens</p>"
    )


def kv_calculator() -> Any:
    """Sliders over the KV sum and its curve; without ipywidgets, the same at one setting."""
    try:
        import ipywidgets
    except ImportError:
        return kv_picture()
    w, wide = ipywidgets, {"description_width": "11em"}
    layout = ipywidgets.Layout(width="36em")
    controls = {
        "model": w.Dropdown(
            options=list(SHAPES),
            value="Llama-3.1-8B",
            description="model",
            style=wide,
            layout=layout,
        ),
        "dtype": w.Dropdown(
            options=list(DTYPE_BYTES),
            value="float16",
            description="cache precision",
            style=wide,
            layout=layout,
        ),
        "context": w.IntSlider(
            value=3000,
            min=250,
            max=32_000,
            step=250,
            description="tokens per request",
            style=wide,
            layout=layout,
            continuous_update=False,
        ),
        "free_gb": w.IntSlider(
            value=24,
            min=1,
            max=140,
            description="free memory (GB)",
            style=wide,
            layout=layout,
            continuous_update=False,
        ),
    }
    return interactive(
        controls, lambda **chosen: kv_sum(**chosen) + kv_picture(**chosen).html(), kv_picture()
    )


def batch_slider(points: Sequence[tuple[int, float, float]]) -> Any:
    """A slider over the batch sizes of `plots.tradeoff`; without ipywidgets, one size marked."""
    sizes = [size for size, _, _ in points]
    still = tradeoff(points, sizes[len(sizes) // 2])
    try:
        import ipywidgets
    except ImportError:
        return still
    slider = ipywidgets.SelectionSlider(
        options=sizes,
        value=sizes[len(sizes) // 2],
        description="people in the batch",
        style={"description_width": "11em"},
        layout=ipywidgets.Layout(width="36em"),
        continuous_update=False,
    )
    return interactive({"chosen": slider}, lambda chosen: tradeoff(points, chosen).html(), still)


def prefix_picture(position: int = 40, block_size: int = 16, prompt: int = 256) -> Picture:
    """Of a prompt that differs from the cached one at `position`, which blocks are reused."""
    num_blocks = -(-prompt // block_size)
    reused = min(position, prompt - 1) // block_size
    blocks = [index < reused for index in range(num_blocks)]
    title = f"{reused * block_size} of {prompt} tokens are reused"
    return reused_blocks({"prompt": blocks}, block_size, title)


def prefix_explorer() -> Any:
    """Move the first token that differs; without ipywidgets, the same at one place."""
    try:
        import ipywidgets as w
    except ImportError:
        return prefix_picture()
    look = {
        "style": {"description_width": "14em"},
        "layout": w.Layout(width="40em"),
        "continuous_update": False,
    }
    controls = {
        "position": w.IntSlider(
            value=40, min=0, max=256, description="first token that differs", **look
        ),
        "block_size": w.SelectionSlider(
            options=[1, 8, 16, 32, 64], value=16, description="tokens per block", **look
        ),
    }
    return interactive(controls, lambda **chosen: prefix_picture(**chosen).html(), prefix_picture())


def interactive(
    controls: dict[str, Any], draw: Callable[..., str], still: Picture, columns: int = 1
) -> Any:
    """Controls above one HTML view that `draw(**values)` fills anew at every change.

    With more `columns`, controls stand side by side. In a saved notebook, and where widgets cannot
    be shown, `still` stands in.
    """
    import ipywidgets

    view = ipywidgets.HTML()

    def update(change: object = None) -> None:
        view.value = draw(**{name: control.value for name, control in controls.items()})

    for control in controls.values():
        control.observe(update, names="value")
    update()
    shown = [*controls.values()]
    if columns > 1:
        rows = [shown[i : i + columns] for i in range(0, len(shown), columns)]
        shown = [ipywidgets.HBox(row) for row in rows]
    return _WithStill(ipywidgets.VBox([*shown, view]), still)


class _WithStill:
    """A widget whose output also holds a still picture, for viewers that show no widgets."""

    def __init__(self, widget: Any, still: Picture) -> None:
        self.widget, self.still = widget, still

    def _repr_mimebundle_(self, **options: Any) -> Any:
        bundle = self.widget._repr_mimebundle_(**options)
        data, metadata = bundle if isinstance(bundle, tuple) else (bundle, {})
        return {**data, "text/html": self.still.html(), "text/plain": repr(self.still)}, metadata
