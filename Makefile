# Two commands do everything on a fresh Debian machine: `make demo` and `make test`.
# The build itself is CMake with presets; this file only names the sequences people type.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# ccache makes a second build nearly free; it is used where it is installed and never required.
export CMAKE_CXX_COMPILER_LAUNCHER ?= $(shell command -v ccache)
# Without these it passes over everything that has a precompiled header.
export CCACHE_SLOPPINESS ?= pch_defines,time_macros

JOBS ?= $(shell getconf _NPROCESSORS_ONLN)
FUZZ_SECONDS ?= 60
NIGHTLY_FUZZ_SECONDS ?= 600
BENCH_EVENTS ?= 750000

PREFIX ?= /usr/local

RELEASE := build/release/src/cli/plimsoll
DEMO := tests/data/snapshots/unet_adam_fp32_oom.pickle.xz
DEMO_STEP := tests/data/steps/gpt2_adamw_fp32.step.json.gz

.PHONY: help
help: ## This list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-9s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: demo
demo: release ## Install what is missing, build, explain a real out-of-memory snapshot, find what would have made it fit, predict a job, and draw it
	@echo "\$$ plimsoll explain $(DEMO)"
	@$(RELEASE) explain $(DEMO)
	@echo; echo "\$$ plimsoll tune $(DEMO)"
	@$(RELEASE) tune $(DEMO)
	@echo; echo "\$$ plimsoll predict $(DEMO_STEP) --max-batch --gpu 'RTX 4090'"
	@$(RELEASE) predict $(DEMO_STEP) --max-batch --gpu 'RTX 4090'
	@$(RELEASE) report $(DEMO) -o build/report.html
	@echo; echo "\$$ plimsoll report $(DEMO) -o build/report.html"
	@echo "The same as a page: open build/report.html in a browser."
	@echo; echo "The program is $(RELEASE). To have it as plimsoll: sudo make install, or"
	@echo "  export PATH=\"$(CURDIR)/$(dir $(RELEASE)):\$$PATH\""

.PHONY: release
release: ## Build the program: build/release/src/cli/plimsoll
	@tools/install_deps.sh build
	@cmake --preset release --log-level=WARNING
	@cmake --build --preset release --parallel $(JOBS)

.PHONY: install
install: release ## Install the program, man pages and completion to PREFIX (/usr/local); DESTDIR is put before it
	@DESTDIR="$(DESTDIR)" cmake --install build/release --prefix "$(PREFIX)" --component plimsoll --strip

.PHONY: dist
dist: release ## A wheel, a .deb and a .tar.gz in build/dist, for machines with this glibc or a newer one
	@tools/package_tools
	@rm -rf build/dist
	@tools/make_archives build/release build/dist
	@tools/make_wheel $(RELEASE) build/dist

.PHONY: test
test: ## Install what is missing, then every check and test
	@if python3 -c 'import ensurepip' 2>/dev/null; then tools/python_tools & fi; tools/install_deps.sh test
	@tools/run_tests --jobs $(JOBS) ci train

.PHONY: nightly
nightly: ## What takes longer, in parts that can be stopped and taken up again: sanitizers, long inputs, every fuzzer (tools/nightly --list)
	@tools/nightly --jobs $(JOBS) --fuzz-seconds $(NIGHTLY_FUZZ_SECONDS)

.PHONY: quick
quick: ## Every check and test of the core
	@tools/install_deps.sh test
	@tools/run_tests --jobs $(JOBS) ci

.PHONY: fuzz
fuzz: ## Run every libFuzzer target for FUZZ_SECONDS (60) seconds each
	@tools/install_deps.sh fuzz
	@fuzz/run.sh $(FUZZ_SECONDS)

.PHONY: bench
bench: ## Time and memory of explain against CPython's pickle.load; BENCH_EVENTS events
	@tools/install_deps.sh test
	@cmake --preset bench --log-level=WARNING
	@cmake --build --preset bench --parallel $(JOBS)
	@lab/explain_vs_pickle.sh build/bench/src/cli/plimsoll $(BENCH_EVENTS)
	@for b in readers_benchmark replay_benchmark pack_hard; do \
	  if [ -x build/bench/bench/$$b ]; then build/bench/bench/$$b; fi; done

.PHONY: site
site: ## The documents as a site: build/site/index.html
	@tools/install_deps.sh programs
	@tools/check_site build/site

.PHONY: format
format: ## Rewrite every C++ file with clang-format 16
	@tools/install_deps.sh programs
	@tools/check_format --fix

.PHONY: tidy
tidy: ## clang-tidy over src (the list in .clang-tidy, all as errors)
	@tools/install_deps.sh tidy
	@cmake --preset dev --log-level=WARNING
	@tools/run_tidy --jobs $(JOBS) build/dev

.PHONY: clean
clean: ## Remove everything that was built
	@rm -rf build
