#!/bin/sh
# Makes .venv-breaching beside this file: the package that inversion_peer.py runs.
set -eu
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv-breaching
echo '*' > .venv-breaching/.gitignore
install=".venv-breaching/bin/python -m pip install -qq --disable-pip-version-check -c ../constraints.txt"
$install torch torchvision numpy scipy pillow safetensors hydra-core tqdm
$install --no-deps breaching==0.1.2 lpips
