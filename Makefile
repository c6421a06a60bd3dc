# make install, demo, ablation, results, results-long, results-check, test, test-all, lint, docs, bench, rehearsal, fuzz,
# chaos, audit, mlflow, clean.
# CONFIG and ARGS are passed on to the ablation:
#   make ablation CONFIG=experiments/coco_tiny.yaml ARGS="training.max_steps=4"

VENV := .venv
PYTHON := $(VENV)/bin/python
STAMP := $(VENV)/.installed
CONFIG ?= experiments/tiny.yaml
ARGS ?=
# Processes that `make test` shares the test files among; never more than there are cores.
PROCESSES ?= 2
# The tests that `make test` chooses. CI adds the long ones whose parts are tested without them: a
# rehearsal of a first real run, inputs damaged at random, and some more.
TESTS ?= not slow and not gpu and not ci
# Extra arguments for installing torch, such as the index of CPU wheels, where pip's own configuration has none.
TORCH_INSTALL_ARGS ?=

# pip's warnings matter where it fails; they are kept.
PIP_INSTALL := $(PYTHON) -m pip install --disable-pip-version-check -c constraints.txt
SAYS_WHY := > $(VENV)/install.log 2>&1 || { cat $(VENV)/install.log >&2; exit 1; }

RESULTS := results/shapes
SEEDS = results/representation/detections/$1-s0.json.gz,results/representation/detections/$1-s1.json.gz
DEMO := results/demo
# FOD-A, photographs that are not committed: train_one.json, val_one.json and images/.
DEBRIS ?= ../shared/data/debris
PHOTOGRAPHS = data.format=coco data.train_annotations=$(DEBRIS)/train_one.json data.train_images=$(DEBRIS)/images \
    data.val_annotations=$(DEBRIS)/val_one.json data.val_images=$(DEBRIS)/images
# The pilot trains and evaluates on the two parts that the tuning of photographs.yaml writes.
PILOT := results/photographs/pilot
PILOT_VAL := runs/photographs/tuning/tune_val.json
PILOT_DATA = data.train_annotations=runs/photographs/tuning/tune_train.json data.val_annotations=$(PILOT_VAL)

.PHONY: install loops demo ablation results results-long results-check test test-all lint docs bench rehearsal fuzz chaos audit mlflow clean

install: $(STAMP)

# torch goes first and alone: on a machine with CPU wheels configured, nothing later pulls a CUDA build. The package is
# compiled too: where the environment says to keep no bytecode, each of the ten processes of a run would compile it.
$(STAMP): pyproject.toml setup.py constraints.txt
	@python=$$(for candidate in python3.11 python3.12 python3; do \
	    if $$candidate -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; \
	    then echo $$candidate; break; fi; done); \
	if [ -z "$$python" ]; then echo "coordexp needs Python 3.11 or 3.12, and found neither on PATH" >&2; exit 1; fi; \
	test -x $(PYTHON) || $$python -m venv $(VENV)
	@echo "Installs into $(VENV): PyTorch, then Ray, transformers and the rest, 190 packages; 2 to 5 minutes, 2.4 GB (with CUDA 7)."
	@$(PIP_INSTALL) $(TORCH_INSTALL_ARGS) torch $(SAYS_WHY) && $(PIP_INSTALL) -e ".[dev]" $(SAYS_WHY)
	@echo "Compiles the loops that compute AP, half a minute."; $(MAKE) loops $(SAYS_WHY)
	@$(PYTHON) -m compileall -q coordexp
	@touch $(STAMP); echo "Installed. The first table, in about five minutes: make ablation"

# numba compiles a loop when it is first called, and keeps it: three runs that evaluate for the first time would do so side
# by side. Comparing two methods with two seeds each calls every loop.
loops:
	$(PYTHON) -m coordexp compare --annotations results/representation/annotations.json.gz --pictures 0 --resamples 100 \
	    --output $(VENV)/comparison $(foreach group,A C,$(group)=$(call SEEDS,$(group)))

ablation: install
	$(PYTHON) -m coordexp ablation --config $(CONFIG) $(ARGS)

# What is committed in results/: the shapes with five seeds, three groups again without clipping, and digits beside coord
# tokens. Resumable.
results: install
	$(PYTHON) -m coordexp ablation --config experiments/shapes.yaml $(ARGS)
	$(PYTHON) -m coordexp ablation --config experiments/shapes.yaml experiment.name=shapes_unclipped \
	    ablation.groups=[A,B,C] ablation.seeds=[0,1,2] training.max_grad_norm=1000000 $(ARGS)
	$(PYTHON) -m coordexp ablation --config experiments/representation.yaml $(ARGS)
	$(PYTHON) -m coordexp report shapes --publish $(RESULTS)
	$(PYTHON) -m coordexp report shapes_unclipped --publish $(RESULTS)/unclipped
	$(PYTHON) -m coordexp report representation --publish results/representation

# What this is, seen before anything is trained: the committed comparison, and a picture by a committed checkpoint of group C.
demo: install
	$(PYTHON) -m coordexp predict --model $(DEMO)/model $(DEMO)/picture.jpg --output runs/demo
	@page="file://$(CURDIR)/$(RESULTS)/report.html"; echo "the comparison of six groups: $$page"; \
	case "$$(uname) $$DISPLAY$$WAYLAND_DISPLAY" in "Linux ") ;; *) $(PYTHON) -m webbrowser "$$page" ;; esac

# Many hours: what happens after the first steps, whether the order of objects matters, and photographs, if their folder
# is there. Resumable; each line may also be given alone.
results-long: install
	$(PYTHON) -m coordexp ablation --config experiments/ordering_base.yaml $(ARGS)
	$(PYTHON) -m coordexp report ordering_base --publish results/ordering/base
	$(PYTHON) -m coordexp ablation --config experiments/ordering.yaml $(ARGS)
	$(PYTHON) -m coordexp ablation --config experiments/ordering_C.yaml $(ARGS)
	$(PYTHON) -m coordexp report ordering --publish results/ordering/A
	$(PYTHON) -m coordexp report ordering_C --publish results/ordering/C
	@if [ -d $(DEBRIS) ]; then set -ex; \
	    $(PYTHON) -m coordexp ablation --config experiments/photographs.yaml $(PHOTOGRAPHS) $(ARGS); \
	    $(PYTHON) -m coordexp report photographs --publish results/photographs --without-data; \
	    $(PYTHON) -m coordexp ablation --config experiments/photographs_pilot.yaml $(PHOTOGRAPHS) $(PILOT_DATA) $(ARGS); \
	    $(PYTHON) -m coordexp report photographs_pilot --publish $(PILOT) --without-data; \
	else echo "no photographs: $(DEBRIS) is missing; give DEBRIS=FOLDER"; fi
	$(PYTHON) -m coordexp ablation --config experiments/amount_1.yaml $(ARGS)
	$(PYTHON) -m coordexp report amount_1 --publish results/amount_1
	$(PYTHON) -m coordexp ablation --config experiments/amount_4.yaml $(ARGS)
	$(PYTHON) -m coordexp report amount_4 --publish results/amount_4
	$(PYTHON) -m coordexp ablation --config experiments/amount_16.yaml $(ARGS)
	$(PYTHON) -m coordexp report amount_16 --publish results/amount_16
	$(PYTHON) -m coordexp report amount_1 amount_4 amount_16 --over data.shapes.num_train --publish results/amount

# Every published folder. The photographs are published without annotations, and are left out where those are missing;
# those of the pilot are written by the first minute of experiments/photographs.yaml.
results-check: install
	@set -e; for numbers in $(wildcard results/*/numbers.json results/*/*/numbers.json); do \
	    folder=$$(dirname $$numbers); \
	    case $$folder in \
	        results/photographs) annotations=$(DEBRIS)/val_one.json ;; \
	        $(PILOT)) annotations=$(PILOT_VAL) ;; \
	        *) annotations= ;; \
	    esac; \
	    if [ -n "$$annotations" ] && [ ! -f $$annotations ]; then \
	        echo "$$folder: not checked, $$annotations is missing"; continue; \
	    fi; \
	    $(PYTHON) -m coordexp report --check $$folder $${annotations:+--annotations $$annotations}; \
	done

# What is compiled is kept, also where the environment says not to: both processes and every program that a test starts
# would compile all of it again, a seventh of the time.
test: install
	PYTHONDONTWRITEBYTECODE= $(PYTHON) -m pytest -m "$(TESTS)" -n logical --maxprocesses $(PROCESSES) --dist loadfile \
	    --no-loadscope-reorder

test-all: install
	$(PYTHON) -m pytest

lint: install
	$(VENV)/bin/ruff check .
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/pyright
	$(VENV)/bin/lint-imports
	$(PYTHON) -m tests.support.house --check

# README and docs/ as a site with a search, every link checked; it says how to open it.
docs: install
	@$(PIP_INSTALL) -e ".[docs]" $(SAYS_WHY)
	$(PYTHON) docs/build.py

# A first real run at the true shape of the 2B, without a download: 12 minutes (30 without AVX512), 10 GB of memory, 30 GB
# of disk below runs/; SIZE=small is as deep with as many words, but narrow; FAMILY=qwen3_5 is Qwen3.5 at the shape of
# its 0.8B.
rehearsal: install
	$(PYTHON) -m tests.rehearsal.run $(if $(FAMILY),--family $(FAMILY)) $(if $(SIZE),--size $(SIZE)) $(ARGS)

# Damages 2,000 inputs as people and other tools do; what escapes is printed as the command that reads it again.
fuzz: install
	$(PYTHON) -m tests.fuzz.run $(ARGS)

# Stops a small ablation 20 times, inline and on Ray; each must end bit-equal after the same command. About half an hour.
chaos: install
	$(PYTHON) -m tests.chaos.run $(ARGS)

# Ratios measured side by side, and times against their limits; hours. One alone: python tests/benchmarks/bench_NAME.py
bench: install
	@set -e; for script in tests/benchmarks/bench_*.py; do echo "== $$script"; $(PYTHON) $$script; done

# Known weaknesses of what constraints.txt pins; it asks PyPI's advisories, so it needs the network.
audit: install
	$(VENV)/bin/pip-audit --strict --disable-pip --no-deps -r constraints.txt

# The UI on what runs/ holds; loopback only. MLflow opens an experiment in its view of agents, which is empty here.
mlflow: install
	@echo "Runs of an experiment: http://127.0.0.1:5000/#/experiments/1/runs?workflowType=machine_learning&viewStateShareKey=coordexp (the number is the experiment's)"
	MLFLOW_SERVER_ENABLE_JOB_EXECUTION=false $(VENV)/bin/mlflow server --host 127.0.0.1 --port 5000 --workers 1 \
	    --backend-store-uri sqlite:///$(CURDIR)/runs/mlflow.db --default-artifact-root $(CURDIR)/runs/mlartifacts

clean:
	rm -rf $(VENV) build dist site .import_linter_cache *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
