# A thin front for Meson. `make help` lists the targets.
BUILD ?= build
SETUP := tools/setup

.PHONY: all help setup test test-nixl demo bench clean install

all: $(BUILD)/build.ninja
	ninja -C $(BUILD)

help:
	@echo "make            build the library, the command and the reference engine into $(BUILD)/"
	@echo "make demo       install what is missing, build, and answer a prompt across two engines"
	@echo "make test       install what is missing, build, and run every test"
	@echo "make test-nixl  test against a real NIXL agent, which it downloads once"
	@echo "make bench      measure on this machine and print what was measured"
	@echo "make clean      remove $(BUILD)/"

setup:
	@$(SETUP)

$(BUILD)/build.ninja: | setup
	meson setup $(BUILD)

test: setup
	@tools/test $(BUILD)

test-nixl: setup all
	@tools/test-nixl $(BUILD)

demo: setup
	@MODEL="$(MODEL)" PROMPT="$(PROMPT)" tools/demo $(BUILD)

bench: setup
	@tools/bench $(BUILD)

install: all
	meson install -C $(BUILD)

clean:
	rm -rf $(BUILD)
