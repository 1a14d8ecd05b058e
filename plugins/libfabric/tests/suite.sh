# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0 OR MIT
# Settings of c-tests/run.sh for these programs, which drive a provider through libfabric as a client of libfabric would.
#
# TEST_FI_PROVIDER is the provider's name (gdrfab); with another of libfabric's FI_EP_MSG providers the programs themselves
# can be checked: `TEST_FI_PROVIDER=tcp c-tests/run.sh --suite libfabric`. TEST_PROVIDER is the gdrfab provider below it (shm).
# TEST_NODE is the address that both sides use; TEST_CLIENT_NETNS and TEST_CLIENT_NODE are the client's, if it is elsewhere.
# gdrfab is found at FI_PROVIDER_PATH, or else at PREFIX/lib/libfabric, or else at pkg-config's libdir of gdrfab.
if ! pkg-config --exists libfabric; then
	echo "run.sh: no libfabric to build against (pkg-config does not know it); install libfabric-dev"
	exit 77
fi
export TEST_FI_PROVIDER=${TEST_FI_PROVIDER:-gdrfab} TEST_PROVIDER=${TEST_PROVIDER:-shm}
if [ "$TEST_FI_PROVIDER" = gdrfab ]; then
	if [ -z "${FI_PROVIDER_PATH:-}" ]; then
		libdir=${PREFIX:+$PREFIX/lib}
		FI_PROVIDER_PATH=${libdir:-$(pkg-config --variable=libdir gdrfab 2>/dev/null)}/libfabric
	fi
	export FI_PROVIDER_PATH FI_GDRFAB_PROVIDERS=$TEST_PROVIDER
	if [ -z "$build_only" ] && [ ! -e "$FI_PROVIDER_PATH/libgdrfab-fi.so" ]; then
		echo "run.sh: no $FI_PROVIDER_PATH/libgdrfab-fi.so; make install-plugin-libfabric, and set PREFIX" >&2
		exit 1
	fi
fi
# No other provider need start in every process. The claim that looks for them unsets this.
export FI_PROVIDER=$TEST_FI_PROVIDER
