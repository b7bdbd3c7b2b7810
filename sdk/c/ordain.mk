# Variables for the Makefile of a handler in C. Include this file from the Makefile:
#
#   include vendor/ordain-sdk/ordain.mk
#
# The Makefile may set these variables before, or on the command line:
#
#   ZIG     the Zig compiler; by default, a pinned version that `make` installs into the folder .venv
#   ORDAIN  the program `ordain`
#   CC      the native compiler of the tests

# The folder of the SDK.
ORDAIN_SDK := $(patsubst %/,%,$(dir $(lastword $(MAKEFILE_LIST))))

# The files of the SDK, which are compiled into both the component and the test.
ORDAIN_SOURCES := $(wildcard $(ORDAIN_SDK)/*.c)
ORDAIN_HEADERS := $(wildcard $(ORDAIN_SDK)/*.h)

ORDAIN ?= ordain
ORDAIN_ZIG_VERSION := 0.17.1

# ORDAIN_TOOLS is the order-only prerequisite that installs the compiler.
ifndef ZIG
ZIG := .venv/bin/python -m ziglang
ORDAIN_TOOLS := .venv/ziglang-$(ORDAIN_ZIG_VERSION)
endif

ORDAIN_WARNINGS := -Wall -Wextra -Wpedantic

# Flags for `zig cc`. The stack has 256 KiB instead of 16 MiB, so that an instance of the component needs less than
# 1 MiB of memory. `-UNDEBUG` keeps assert(), which `zig cc -O2` removes otherwise. A stripped component is 20 times
# smaller.
ORDAIN_WASM_FLAGS := -target wasm32-wasi -mexec-model=reactor -std=c11 -O2 -UNDEBUG -s $(ORDAIN_WARNINGS) \
  -I$(ORDAIN_SDK) -Wl,-z,stack-size=262144

# Flags for the native compiler.
ORDAIN_TEST_FLAGS := -std=c11 -g -UNDEBUG $(ORDAIN_WARNINGS) -I$(ORDAIN_SDK) \
  -fsanitize=address,undefined -fno-sanitize-recover=all

.venv/ziglang-%:
	python3 -m venv .venv
	.venv/bin/pip install --quiet --disable-pip-version-check ziglang==$*
	touch $@
