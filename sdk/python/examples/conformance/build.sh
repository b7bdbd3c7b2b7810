#!/bin/sh
# Builds conformance.wasm with the Python in the variable PYTHON, which needs componentize-py 0.25.1.
cd "$(dirname "$0")" || exit 1
PYTHONPATH=../.. exec "${PYTHON:-python3}" -m ordain.build conformance.py -o conformance.wasm
