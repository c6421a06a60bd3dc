"""A checkpoint's chat template is a program; here it runs once where it can do no harm, before it runs in our process.

Jinja's sandbox keeps it from the machine, not from loops and texts without end.
"""

import functools
import json
import subprocess
import sys
from pathlib import Path

from coordexp.errors import CheckpointError

CPU_SECONDS = 2
MEMORY_BYTES = 2**30
MAX_CHARS = 2**20

EMBEDDED_TEMPLATE = (
    "{%- for message in messages -%}"
    "{{- '<|im_start|>' + message.role + '\\n' -}}"
    "{%- if message.content is string -%}{{- message.content -}}"
    "{%- else -%}{%- for part in message.content -%}"
    "{%- if part.type == 'image' -%}{{- '<|vision_start|><|image_pad|><|vision_end|>' -}}"
    "{%- else -%}{{- part.text -}}{%- endif -%}"
    "{%- endfor -%}{%- endif -%}"
    "{{- '<|im_end|>\\n' -}}"
    "{%- endfor -%}"
    "{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}"
)

_MESSAGES = [{"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "Detect all objects."}]}]
_TOO_MUCH = 3

# transformers' environment (its own would bring torch along). What Jinja itself objects to is left to our process,
# where the same text raises the same error.
_CHILD = """
import json, resource, sys
given = json.load(sys.stdin)
sys.path[:] = given["path"]  # packages lie where ours do, also where PYTHONPATH says so
from jinja2 import nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment

class Generation(Extension):
    tags = {"generation"}
    def parse(self, parser):
        line = next(parser.stream).lineno
        body = parser.parse_statements(["name:endgeneration"], drop_needle=True)
        return nodes.CallBlock(self.call_method("_whole"), [], [], body).set_lineno(line)
    def _whole(self, caller):
        return caller()

def refuse(message):
    raise ValueError(message)

resource.setrlimit(resource.RLIMIT_CPU, (given["seconds"], given["seconds"]))
resource.setrlimit(resource.RLIMIT_AS, (given["bytes"], given["bytes"]))
try:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, **options: json.dumps(value, ensure_ascii=False)
    environment.globals.update(raise_exception=refuse, strftime_now=lambda form: "")
    size = 0
    for part in environment.from_string(given["template"]).generate(
        messages=given["messages"], add_generation_prompt=True, tools=None, documents=None
    ):
        size += len(part)
        if size > given["chars"]:
            sys.exit(3)
except MemoryError:
    sys.exit(3)
except Exception:
    sys.exit(0)
"""


def check_chat_template(template: str, *, where: Path) -> None:
    """Render a template once, in a process that may take two seconds, one GiB and a million characters.

    Args:
        template: as Jinja.
        where: the checkpoint, for the error.

    Raises:
        CheckpointError: if that is not enough for it. A template that is wrong in another way passes.
    """
    if template != EMBEDDED_TEMPLATE and not _is_small(template):
        raise CheckpointError(
            f"{where}: the chat template takes more than {CPU_SECONDS} s, {MEMORY_BYTES // 2**30} GiB or "
            f"{MAX_CHARS:,} characters to render one message; expected a template such as Qwen3-VL's"
        )


@functools.cache
def _is_small(template: str) -> bool:
    given = {"template": template, "messages": _MESSAGES, "chars": MAX_CHARS, "path": sys.path}
    limits = {"seconds": CPU_SECONDS, "bytes": MEMORY_BYTES}
    done = subprocess.run(
        [sys.executable, "-I", "-c", _CHILD],
        input=json.dumps(given | limits),
        text=True,
        check=False,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    return done.returncode >= 0 and done.returncode != _TOO_MUCH  # below 0 it was ended by a signal, such as a limit's
