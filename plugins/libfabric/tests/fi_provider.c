/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Selects the provider under test. */
#include "fi.h"

const char *test_own_strerror(int err)
{
	return fi_strerror(err < 0 ? -err : err);
}

static const char *env_or(const char *name, const char *otherwise)
{
	const char *text = getenv(name);
	return text && *text ? text : otherwise;
}

const char *fi_provider(void)
{
	return env_or("TEST_FI_PROVIDER", "gdrfab");
}

bool is_gdrfab(void)
{
	return strcmp(fi_provider(), "gdrfab") == 0;
}

bool is_carried_by(const char *name)
{
	return is_gdrfab() && strcmp(env_or("TEST_PROVIDER", "shm"), name) == 0;
}

const char *node_name(void)
{
	return env_or("TEST_NODE", is_carried_by("shm") ? NULL : "127.0.0.1");
}

void skip_unless(bool possible, const char *why)
{
	if (!possible)
		test_skip("%s%s%s: %s", fi_provider(), is_gdrfab() ? " over " : "",
			  is_gdrfab() ? env_or("TEST_PROVIDER", "shm") : "", why);
}

bool survives_failures(void)
{
	return is_carried_by("shm") || is_carried_by("tcp");
}
