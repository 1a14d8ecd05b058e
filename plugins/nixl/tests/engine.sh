#!/bin/sh
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Builds the backend without NIXL: engine.sh PROGRAM [SOURCE]; SOURCE is engine.cpp unless named. CXXFLAGS lead to the library.
set -eu
from=$(cd "$(dirname "$0")" && pwd)
# Without the files that face NIXL.
sources=$(ls "$from"/../*.cpp | grep -vE '/(plugin|border_check)\.cpp$')
# shellcheck disable=SC2086 # lists of words
exec ${CXX:-c++} -std=c++17 -O0 -pthread -Wall -Wextra -Wpedantic -Werror -o "$1" "$from/${2:-engine.cpp}" $sources $CXXFLAGS
