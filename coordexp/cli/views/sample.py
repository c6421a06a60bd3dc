"""A preview as a person sees it: coloured tokens on the terminal, boxes on the picture."""

from pathlib import Path

from PIL import Image, ImageDraw
from rich.console import Console
from rich.table import Table
from rich.text import Text

from coordexp.train.preview import Preview, Role

STYLES: dict[Role, str] = {
    "prompt": "dim",
    "image": "dim cyan",
    "description": "bold green",
    "coord": "yellow",
    "structure": "magenta",
}
_PALETTE = ("#e6194b", "#3cb44b", "#4363d8", "#f58231", "#911eb4", "#008080", "#9a6324", "#000075")
_SHORT_SIDE_PX = 480  # small pictures are enlarged, so that a label can be read


def legend() -> Text:
    """Return the roles in their colours."""
    text = Text("tokens: ")
    for role, style in STYLES.items():
        text.append(role, style=style)
        text.append("  ")
    text.append("(labels are underlined)", style="underline")
    return text


def tokens_text(preview: Preview) -> Text:
    """Return the whole sequence, coloured by role; what is learnt is underlined."""
    text = Text()
    for span in preview.spans:
        style = f"{STYLES[span.role]}{' underline' if span.supervised else ''}"
        text.append(span.text.replace("\n", "⏎\n") if span.role == "prompt" else span.text, style=style)
    return text


def show(preview: Preview, console: Console, *, drawn: Path) -> None:
    """Print one sample: where it comes from, its tokens, and the boxes that its tokens say."""
    sample = preview.sample
    console.rule(f"image {sample.image_id}")
    console.print(f"{sample.image}  {sample.width} x {sample.height} px, {preview.num_tokens} tokens", markup=False)
    console.print(tokens_text(preview), soft_wrap=True)
    if preview.objects:
        console.print(_boxes(preview))
    else:
        console.print("no objects: the answer to learn is the end token alone")
    console.print(f"boxes drawn in {drawn}", markup=False, soft_wrap=True)


def draw(preview: Preview) -> Image.Image:
    """Return the picture with the boxes that the tokens say, each with its description."""
    scale = max(1, -(-_SHORT_SIDE_PX // min(preview.picture.size)))
    width, height = preview.picture.size
    picture = preview.picture.resize((width * scale, height * scale), Image.Resampling.LANCZOS)
    pen = ImageDraw.Draw(picture)
    for number, (desc, box) in enumerate(preview.objects):
        x1, y1, x2, y2 = (value * scale for value in box)
        pen.rectangle((x1, y1, x2, y2), outline=_colour(number), width=2)
        place = (x1 + 3, y1 + 2)
        # The built-in font knows no more than Latin 1; a sign it lacks must not end the preview.
        label = desc.encode("latin-1", "replace").decode("latin-1")
        pen.rectangle(pen.textbbox(place, label), fill="white")
        pen.text(place, label, fill=_colour(number))
    return picture


def _boxes(preview: Preview) -> Table:
    table = Table("", "description", "x1", "y1", "x2", "y2", title="read back from the tokens, in pixels")
    for number, (desc, box) in enumerate(preview.objects):
        table.add_row(Text("■", style=_colour(number)), Text(desc), *(f"{value:.1f}" for value in box))
    return table


def _colour(number: int) -> str:
    return _PALETTE[number % len(_PALETTE)]
