# SPDX-License-Identifier: Apache-2.0 OR MIT
# What c-tests/Makefile adds for these programs.
OWN := nccl_drive nccl_buf nccl_ops nccl_raw nccl_vars

# Functions of it stand in for the system's.
$(BUILD)/nccl_ranks: LIBS += -rdynamic
