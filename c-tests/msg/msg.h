/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs about messages. */
#ifndef MSG_H
#define MSG_H

#include "fab.h"

#define SENT (GDRFAB_SEND | GDRFAB_MSG)
#define RECEIVED (GDRFAB_RECV | GDRFAB_MSG)

/* A setting of the provider with which claims run once more. */
struct variant {
	const char *variable, *value;
	const void *arg;
};

/* Adds the claim `name` once for each setting of the provider. */
static inline void add_with_settings(const char *name, test_fn fn)
{
	static const struct {
		const char *provider;
		struct variant variant;
	} all[] = {
		{"shm", {"GDRFAB_PATHS", "staged,socket", NULL}},
		{"shm", {"GDRFAB_SHM_EAGER_MAX", "0", NULL}},
		{"shm", {"GDRFAB_SHM_EAGER_MAX", "8192", NULL}},
		{"shm", {"GDRFAB_DEBUG", "area-max=131072", NULL}},
		{"shm", {"GDRFAB_DEBUG", "ring-slots=256", NULL}},
		/* The receiver must ask for every message; it grants one at a time; and frames are longer than the buffer. */
		{"tcp", {"GDRFAB_DEBUG", "tcp-budget=0", NULL}},
		{"tcp", {"GDRFAB_DEBUG", "tcp-budget=5000", NULL}},
		{"tcp", {"GDRFAB_DEBUG", "tcp-window=1", NULL}},
		{"tcp", {"GDRFAB_TCP_BUFFER", "32768", NULL}},
	};
	char words[96];
	for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
		const struct variant *v = &all[i].variant;
		if (strcmp(all[i].provider, provider()) != 0)
			continue;
		snprintf(words, sizeof words, "%s_%s=%s", name, v->variable, v->value);
		test_add(words, fn, v, 40);
	}
}

#endif
