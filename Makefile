# Two commands for newcomers, each does all its set-up by itself: make demo, make test.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo test test-slurm lint bench bench-methods clean

demo: .venv/.ready
	$(BIN)/python -m benchmark.sweep --methods all
	$(BIN)/python -m leaderboard site --runs runs --out runs/site

test: .venv/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python -m pytest

# On a real SLURM that the tests start on this machine: as root, with slurm-wlm, munge, slurmdbd and
# mariadb-server installed; elsewhere they skip and say why.
test-slurm: .venv/.ready-test
	FEDDOMAINBED_SLURM=1 $(BIN)/python -m pytest -n 0 -m slurm -rs tests/slurm

bench: .venv/.ready
	$(BIN)/python -m benchmark.bench

bench-methods: .venv/.ready
	$(BIN)/python -m benchmark.bench.methods --methods all --targets print

lint: .venv/.ready-test
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

.venv/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo "error: Python 3.11 or newer is needed; name one with make PYTHON=python3.12"; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	@touch $@

.venv/.ready-test: .venv/.ready
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[test]"
	@touch $@

clean:
	rm -rf .venv build *.egg-info
