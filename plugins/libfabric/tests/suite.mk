# SPDX-License-Identifier: Apache-2.0 OR MIT
# What c-tests/Makefile does differently for these programs: they are clients of libfabric alone, whose headers are the system's,
# not ours to judge.
SHARED := claim pattern process_pair
OWN    := fi_provider fi_oob fi_done fi_mem fi_node fi_rdm
USE    := $(shell pkg-config --cflags libfabric | sed 's/-I/-isystem /g') -DTEST_OWN_WORDS
LIBS   := $(shell pkg-config --libs libfabric) -ldl
