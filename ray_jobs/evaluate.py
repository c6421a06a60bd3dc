"""``coordexp evaluate`` as a job on Ray workers, from a submitted copy of the checkout too, where nothing is installed.

ray job submit --working-dir . -- python ray_jobs/evaluate.py --model /shared/merged ... --num-workers 8
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordexp.cli.main import main

if __name__ == "__main__":
    # A job's own node may have no GPU: it evaluates on a worker even where no number of them is given.
    sys.exit(main(["evaluate", "--num-workers=1", *sys.argv[1:]]))
