"""Ray itself breaks: no process of ours is left, and the same command goes on."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from coordexp.config import to_yaml
from tests.integration.ablation_support import make_base
from tests.integration.fault_support import Undisturbed, attempts, fault_config, plans_of
from tests.integration.ray_support import private_ray_environment

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
# In a process of its own, which adopts what loses its parent, so that nothing can hide from it.
SCRIPT = """
import json, subprocess, sys
from pathlib import Path
from tests.chaos.processes import adopt_orphans, descendants, name_of, send, until

victim, log, *command = sys.argv[1:]
adopt_orphans()
with open(log, "wb") as handle:
    job = subprocess.Popen(command, stdout=handle, stderr=handle, start_new_session=True)
assert until(lambda: "step 3/" in Path(log).read_text() or job.poll() is not None, 400)
send([process for process in descendants() if victim in name_of(process).split(" ")[0]], 9)
code = job.wait(300)
until(lambda: not descendants(), 60)
left = [name_of(process) for process in descendants()]
send(descendants(), 9)
print(json.dumps([code, left]))
"""


def test_a_private_ray_whose_head_dies_leaves_no_process(tmp_path):
    base = make_base(tmp_path / "base")
    undisturbed = Undisturbed(fault_config(base, tmp_path / "undisturbed", ("plain",), executor="inline"))
    config = fault_config(base, tmp_path / "runs", ("plain",))
    (tmp_path / "experiment.yaml").write_text(to_yaml(config))
    command = [sys.executable, "-m", "tests.chaos.stand_in", "ablation", "--config", str(tmp_path / "experiment.yaml")]
    root, log = Path(__file__).parents[2], tmp_path / "job.log"
    with private_ray_environment():
        found = subprocess.run(
            [sys.executable, "-c", SCRIPT, "gcs_server", str(log), *command],
            cwd=root,
            capture_output=True,
            text=True,
            check=True,
        )
        code, left = json.loads(found.stdout.splitlines()[-1])
        assert code != 0, log.read_text()
        assert left == []
        again = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
    assert again.returncode == 0, again.stderr
    assert attempts(plans_of(config)["plain-s0"])[0] == 0
    undisturbed.assert_equals(config, "plain-s0")
