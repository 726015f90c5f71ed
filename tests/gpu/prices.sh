#!/bin/sh
# What each way of using CUPTI costs, in ten minutes on one GPU or two, without a network:
#     sh tests/gpu/prices.sh WHEEL OUT 2>&1 | tee OUT.log      from the repository's root; PYTHON names a Python with PyTorch
# WHEEL: nvidia-cuda-cupti of 13.2 or later (`pip download --no-deps`); CUDA_HOME has cuda.h. OUT gets prices.json and errors.log.
set -u
here=$(dirname "$0")
wheel=$(mktemp -d)
python3 -m zipfile -e "$1" "$wheel" && timeout -k 5 "${PRICES_TIMEOUT:-570}" "${PYTHON:-python3}" "$here/prices.py" "$wheel" "$2"
code=$?
rm -rf "$wheel"
exit $code
