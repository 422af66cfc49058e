"""``istmpi export``: a trained network for programs that know nothing of istmpi."""

from pathlib import Path

import click
from rich.console import Console
from rich.markup import escape

from istmpi.comm import current_rank
from istmpi.foreign import one_line, printable
from istmpi.report.units import size


@click.command("export")
@click.argument("path", metavar="CKPT")
@click.option("--to", "form", required=True, metavar="FORM", help="safetensors, torch, onnx or npz.")
@click.option("--out", metavar="FILE", help="Where to.  [default: beside CKPT]")
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--calibrate-on", metavar="DATA", help="For a CKPT without calibration: what it was trained on.")
@click.option("--model", metavar="FILE.py:Class", help="The class of a network of your own; its code is run.")
@click.option("--changed-source", is_flag=True, help="Take the class though its source has changed since training.")
def command(
    path: str,
    form: str,
    out: str | None,
    force: bool,
    calibrate_on: str | None,
    model: str | None,
    changed_source: bool,
) -> None:
    """Write the network in CKPT for plain PyTorch, onnxruntime or NumPy; its predictions stay the same.

    \b
    istmpi export runs/digits/network.h5 --to onnx
    istmpi export runs/digits/network.h5 --to safetensors --out digits.safetensors
    istmpi export runs/mine/network.h5 --to torch --model mynet.py:Net

    Calibration and input normalisation go along as layers; a network of your own keeps its own names, for its
    load_state_dict. torch writes a second file, .pt2, a program that needs no class. docs/checkpoint-format.md says how
    to use the files.
    """
    if current_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.deploy.export import export

    done = export(path, form, Path(out) if out else None, calibrate_on, force, model, changed_source)
    if done.note:
        click.echo(one_line(f"istmpi: {done.note}."), err=True)
    console = Console(emoji=False, highlight=False, soft_wrap=True)
    beside = f" with {escape(printable(done.beside.name))}" if done.beside else ""
    console.print(f"[bold]{escape(printable(str(done.path)))}[/]{beside}, {size(done.bytes)}")
    for layer in done.layers:
        settings = ", ".join(f"{name}={value}" for name, value in layer.settings.items())
        console.print(escape(f"{layer.name:<20} {layer.kind}({settings})"))
