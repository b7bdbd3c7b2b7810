# The rules of an example. The Makefile of the example includes this file, and its folder has the name of the handler:
# `make` builds `orders.wasm` of `orders.c`, and `make test` runs `orders_test.c` natively.

NAME := $(notdir $(CURDIR))

all: $(NAME).wasm

include ../../ordain.mk

$(NAME).wasm: $(ORDAIN_SOURCES) $(NAME).c $(ORDAIN_HEADERS) | $(ORDAIN_TOOLS)
	$(ZIG) cc $(ORDAIN_WASM_FLAGS) $(filter %.c,$^) -o $(NAME).core.wasm
	$(ORDAIN) plugins wrap $(NAME).core.wasm -o $@

.PHONY: all test clean
test: $(NAME).c $(NAME)_test.c
	mkdir -p build
	$(CC) $(ORDAIN_TEST_FLAGS) $^ $(ORDAIN_SOURCES) -o build/$(NAME)_test
	build/$(NAME)_test

clean:
	rm -rf build *.wasm
