# SPDX-License-Identifier: Apache-2.0 OR MIT
# What the Makefiles of the plugins share. A plugin is C or C++ on the installed library, which pkg-config finds, and is built as a user
# would build it. The Makefile above builds and installs the library first: `make plugin-nccl` there.
#
# Each Makefile sets SO (the file), SUBDIR (its folder below LIBDIR, or nothing), RUNPATH, COMPILE, SOURCES and USE.

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

# Installs what `all` has built: `sudo make install` may find no compiler.
install:
	@DESTDIR="$(DESTDIR)" LIBDIR="$(LIBDIR)" INSTALL="$(INSTALL)" $(MAKE_DIR)/dirs.sh $(DIR)
	$(INSTALL) -m 755 $(STRIPPED)/$(SO) $(DESTDIR)$(DIR)/$(SO)

uninstall:
	rm -f $(DESTDIR)$(DIR)/$(SO)

.PHONY: all install uninstall
