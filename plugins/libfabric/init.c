/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The entry point that libfabric loads. Finds the functions of the libfabric that called, and registers the provider
 * with it. */
#include "provider.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

/* ---- one slot for each libfabric, as it calls these functions without naming itself */

enum { MOST = 8 };
static struct libfabric slots[MOST];
static pthread_mutex_t slots_lock = PTHREAD_MUTEX_INITIALIZER;

static void cleanup(struct libfabric *lib)
{
	pthread_mutex_lock(&slots_lock);
	/* A libfabric that finds this file twice loads it twice, cleans one of the two up, and keeps the other. */
	if (lib->loads > 0 && --lib->loads == 0)
		caller_gone(lib);
	pthread_mutex_unlock(&slots_lock);
}

#define SLOT(n)                                                                                                        \
	static int getinfo_##n(uint32_t version, const char *node, const char *service, uint64_t flags,                \
			       const struct fi_info *hints, struct fi_info **info)                                     \
	{                                                                                                              \
		enter(&slots[n]);                                                                                      \
		return info_get(version, node, service, flags, hints, info);                                           \
	}                                                                                                              \
	static int fabric_##n(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context)                  \
	{                                                                                                              \
		enter(&slots[n]);                                                                                      \
		return fabric_open(attr, fabric, context);                                                             \
	}                                                                                                              \
	static void cleanup_##n(void)                                                                                  \
	{                                                                                                              \
		cleanup(&slots[n]);                                                                                    \
	}
SLOT(0) SLOT(1) SLOT(2) SLOT(3) SLOT(4) SLOT(5) SLOT(6) SLOT(7)
#undef SLOT
#define SLOT(n) {.getinfo = getinfo_##n, .fabric = fabric_##n, .cleanup = cleanup_##n}
static const struct fi_provider entries[MOST] = {SLOT(0), SLOT(1), SLOT(2), SLOT(3), SLOT(4), SLOT(5), SLOT(6), SLOT(7)};

static void *function(void *from, const char *name)
{
	void *at = from ? dlsym(from, name) : NULL;
	return at ? at : dlsym(RTLD_DEFAULT, name);
}

/* Finds libfabric's functions in the file that the caller's code is in. */
static bool find_libfabric(struct libfabric *lib, const char *file)
{
	void *from = NULL;
	uint32_t (*version)(void);
	if (file)
		from = dlopen(file, RTLD_LAZY | RTLD_NOLOAD);
	if (!from)
		from = dlopen(NULL, RTLD_LAZY); /* libfabric is linked into the program */
	*(void **)&lib->dupinfo = function(from, "fi_dupinfo");
	*(void **)&lib->freeinfo = function(from, "fi_freeinfo");
	*(void **)&lib->log_enabled = function(from, "fi_log_enabled");
	*(void **)&lib->log = function(from, "fi_log");
	*(void **)&lib->param_define = function(from, "fi_param_define");
	*(void **)&lib->param_get = function(from, "fi_param_get");
	*(void **)&version = function(from, "fi_version");
	if (from)
		dlclose(from);
	if (!lib->dupinfo || !lib->freeinfo || !lib->log_enabled || !lib->log || !lib->param_define || !lib->param_get ||
	    !version)
		return false;
	/* libfabric leaves out providers whose version is below the application's. Reporting the caller's version is
	 * safe: newer versions only append fields, to structures whose sizes libfabric knows itself and to tables
	 * that hold their own sizes. */
	lib->provider.fi_version = version();
	return true;
}

static bool asks_for_rxm(const char *variable)
{
	const char *text = getenv(variable);
	return text && strstr(text, "ofi_rxm");
}

/*
 * Hides ofi_rxm over this provider from programs that do not name it. ofi_rxm's endpoints precede ours in
 * libfabric's list, so a program that asks for gdrfab would find them first. libfabric does the same for its own
 * providers with FI_EP_RDM, by a mark behind the type in the data that it keeps in fi_provider.context (1.17 to 2.6;
 * there is no call for it). libfabric recognises ofi_rxm named in hints; names in the environment must be looked for
 * here.
 */
static void leave_rxm_out(struct fi_provider *provider)
{
	enum { MARK = sizeof(int) + 1 };
	if (!asks_for_rxm("FI_PROVIDER") && !asks_for_rxm("OMPI_MCA_mtl_ofi_provider_include"))
		((unsigned char *)&provider->context)[MARK] = true;
}

/* The slot of the libfabric at `base`, found or made. NULL: there are too many, or a function is missing. */
static struct libfabric *load(void *base, const char *file)
{
	struct libfabric *lib = NULL;
	for (int i = 0; i < MOST && !lib; i++)
		if (slots[i].loads && slots[i].base == base && find_libfabric(&slots[i], file))
			lib = &slots[i];
	for (int i = 0; i < MOST && !lib; i++) {
		if (slots[i].loads)
			continue;
		lib = &slots[i];
		memset(lib, 0, sizeof *lib);
		lib->provider = entries[i];
		lib->provider.version = FI_VERSION(GDRFAB_VERSION_MAJOR, GDRFAB_VERSION_MINOR);
		lib->provider.name = "gdrfab";
		lib->decided = (pthread_once_t)PTHREAD_ONCE_INIT;
		lib->base = base;
		leave_rxm_out(&lib->provider);
		if (!find_libfabric(lib, file)) {
			memset(lib, 0, sizeof *lib);
			caller_gone(lib);
			return NULL;
		}
	}
	if (lib)
		lib->loads++;
	return lib;
}

__attribute__((visibility("default"))) struct fi_provider *fi_prov_ini(void)
{
	Dl_info at = {0};
	bool known = dladdr(__builtin_return_address(0), &at) != 0;
	pthread_mutex_lock(&slots_lock);
	struct libfabric *lib = load(known ? at.dli_fbase : NULL, known ? at.dli_fname : NULL);
	pthread_mutex_unlock(&slots_lock);
	if (!lib)
		return NULL;
	lib->param_define(&lib->provider, "providers", FI_PARAM_STRING,
			  "Which of gdrfab's providers are offered, in this order: shm, verbs, tcp, separated by commas "
			  "(default: all; shm first if the launcher says that all processes are on one host, else last)");
	return &lib->provider;
}
