"""Numbers beyond which no work can end well: refused in a sentence before any of it begins."""

MAX_COUNT = 2**31 - 1  # what a 32-bit index holds
MAX_SEED = 2**32 - 1  # of numpy's global generator, which libraries draw from
MAX_IMAGES = 1_000_000  # of a drawn set: 4 GB of disk, half an hour
MAX_PIXELS = 2**26  # of one image: some 65,000 tokens
MAX_PROCESSES = 4_096  # on however many machines; of threads, and of CPUs and GPUs of a process, the same
MAX_RUNS = 10_000  # of one experiment: what one page and one experiment of MLflow hold
MAX_RANK = 8_192  # of an adapter: wider than that is hardly a layer
MAX_RESAMPLES = 1_000_000  # 8 MB a group, seed and metric; the interval's third digit stands still long before
MAX_PICTURES = 10_000  # of a gallery, all on one page
