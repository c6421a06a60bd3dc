"""``coordexp merge`` as a job, from a submitted copy of the checkout too, where nothing is installed.

ray job submit --working-dir . -- python ray_jobs/merge.py --adapter /shared/checkpoint --output /shared/merged
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from coordexp.cli.main import main

if __name__ == "__main__":
    sys.exit(main(["merge", *sys.argv[1:]]))
