#!/bin/sh
# Makes .venv-peers beside this file: pfl, FedJAX and Flower's simulation, which federation.py compares with.
set -eu
cd "$(dirname "$0")"
"${PYTHON:-python3}" -m venv .venv-peers
echo '*' > .venv-peers/.gitignore
.venv-peers/bin/python -m pip install -qq --disable-pip-version-check \
  -c ../constraints.txt -c constraints-peers.txt torch numpy 'pfl[pytorch]' 'flwr[simulation]' fedjax
