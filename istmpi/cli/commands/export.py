"""Write a trained network for PyTorch, ONNX or NumPy."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from istmpi.cli.options import calibrate_on, flag, force, own_class, subnet, text
from istmpi.cli.output import note, say
from istmpi.comm import find_rank
from istmpi.units import number, size

if TYPE_CHECKING:
    from istmpi.deploy.export import Size
    from istmpi.deploy.opening import NetworkFile


@click.command("export")
@click.argument("path", metavar="CKPT")
@click.option(
    "--to", "form", required=True, metavar="FORM", help="safetensors, torch, onnx or npz."
)
@text("--out", "FILE", "The file to write.  [default: next to CKPT]")
@force
@calibrate_on
@own_class
@subnet
@flag("--changed-source", "Use the class although its source has changed since training.")
@flag("--dry-run", "Print weights, bytes and FLOPs of an example, and write nothing.")
def command(
    path: NetworkFile,
    form: str,
    out: str | None,
    force: bool,
    calibrate_on: str | None,
    model: str | None,
    changed_source: bool,
    dry_run: bool,
) -> None:
    """Write the network in CKPT for plain PyTorch, onnxruntime or NumPy; its predictions stay the
    same.

    \b
    istmpi export runs/digits/network.h5 --to onnx
    istmpi export runs/digits/network.h5 --to safetensors --out digits.safetensors
    istmpi export runs/mine/network.h5 --to torch --model mynet.py:Net

    Calibration and input normalisation of an mlp become layers. Other networks keep their parameter
    names; their classes take normalised inputs. Programs (onnx, and the second file of torch, .pt2)
    need no class and normalise inputs. See docs/formats.md.
    """
    if find_rank() > 0:
        return  # one process does it, however many were started

    from istmpi.deploy.export import export, measure

    if dry_run:
        _print_size(measure(path, form, model))
        return
    target = Path(out) if out else None
    done = export(path, form, target, calibrate_on, force, model, changed_source)
    if done.note:
        note(done.note)
    beside = f" with {done.beside.name}" if done.beside else ""
    say(f"{done.path}{beside}, {size(done.bytes)}")


def _print_size(planned: Size) -> None:
    say(
        f"{number(planned.weights)} weights, {size(planned.bytes)}, "
        f"{number(planned.flops)} FLOPs for an example; nothing is written"
    )
