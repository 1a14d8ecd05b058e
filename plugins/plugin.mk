# SPDX-License-Identifier: Apache-2.0 OR MIT
# The rules that the Makefiles of the plugins share. A plugin is C or C++ against the installed library, which pkg-config finds. `make
# plugin-nccl` in the root of the repository first builds the library and installs it into target/prefix.
#
# Each Makefile sets SO (the plugin's file name), SUBDIR (its folder below LIBDIR, or nothing), RUNPATH, COMPILE (compiler and language),
# SOURCES, and USE (further libraries).

OUT      ?= $(CURDIR)/build
STRIPPED ?= $(OUT)/stripped
LIBDIR   ?= /usr/local/lib
CC       ?= cc
CXX      ?= c++
INSTALL  ?= install
OBJCOPY  ?= objcopy
MAKE_DIR := $(dir $(lastword $(MAKEFILE_LIST)))../make
WARNINGS := -Wall -Wextra -Wpedantic -Werror
DIR       = $(LIBDIR)$(if $(SUBDIR),/$(SUBDIR))

# The file stays loaded when its host closes it (nodelete), because gdrfab's threads may still run in it.
all:
	@mkdir -p $(OUT)
	$(COMPILE) -O2 -g -fPIC -fvisibility=hidden -pthread $(WARNINGS) -shared -Wl,-soname,$(SO) -Wl,-z,defs -Wl,-z,nodelete \
		-Wl,-rpath,'$(RUNPATH)' -o $(OUT)/$(SO) $(SOURCES) $$(pkg-config --cflags --libs gdrfab) $(USE)
	@OBJCOPY="$(OBJCOPY)" $(MAKE_DIR)/split-debug.sh $(OUT) $(STRIPPED) $(SO)

# Installs the file that `all` has built. This target does not build, because `sudo make install` may find no compiler.
install:
	@DESTDIR="$(DESTDIR)" LIBDIR="$(LIBDIR)" INSTALL="$(INSTALL)" $(MAKE_DIR)/dirs.sh $(DIR)
	$(INSTALL) -m 755 $(STRIPPED)/$(SO) $(DESTDIR)$(DIR)/$(SO)

uninstall:
	rm -f $(DESTDIR)$(DIR)/$(SO)

.PHONY: all install uninstall
