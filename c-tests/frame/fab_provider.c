/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The differences between providers, in one place: claims ask here, and their text is the same for all providers.
 * Differences that gdrfab_info tells are not here.
 */
#include "fab_provider.h"

#include <dlfcn.h>

#define OWN_PATHS (GDRFAB_PATH_DIRECT | GDRFAB_PATH_CMA | GDRFAB_PATH_STAGED | GDRFAB_PATH_IPC)
#define NIC_PATHS (GDRFAB_PATH_STAGED | GDRFAB_PATH_NIC | GDRFAB_PATH_DMABUF | GDRFAB_PATH_PEER_MEM)

static const struct traits known[] = {
	{.name = "shm",
	 .scheme = "shm://",
	 .paths = OWN_PATHS,
	 .delivery = GDRFAB_DELIVERY_COMPLETE,
	 .survives_failures = true,
	 .knows_regions = true,
	 .keeps_messages = true,
	 .cancels = true},
	{.name = "verbs", .scheme = "verbs://", .paths = NIC_PATHS, .numbered = true, .adapter = true},
	{.name = "tcp",
	 .scheme = "tcp://",
	 .paths = GDRFAB_PATH_SOCKET | GDRFAB_PATH_STAGED,
	 .delivery = GDRFAB_DELIVERY_COMPLETE,
	 .numbered = true,
	 .node = "127.0.0.1",
	 .survives_failures = true,
	 .keeps_messages = true,
	 .cancels = true},
};

const struct traits *traits(void)
{
	const char *name = getenv("TEST_PROVIDER");
	if (!name || !*name)
		return &known[0];
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (strcmp(known[i].name, name) == 0)
			return &known[i];
	fprintf(stderr, "TEST_PROVIDER=%s: these programs do not know it\n", name);
	exit(1);
}

const char *provider(void)
{
	return traits()->name;
}

void skip_unless(bool possible, const char *why)
{
	if (!possible)
		test_skip("provider %s: %s", provider(), why);
}

void set_variable(const char *name, const char *value)
{
	const char *there = getenv(name);
	char both[1024];
	if (strcmp(name, "GDRFAB_DEBUG") == 0 && there && *there) {
		snprintf(both, sizeof both, "%s,%s", there, value);
		value = both;
	}
	if (setenv(name, value, 1))
		test_fail(__FILE__, __LINE__, "%s=%s cannot be set", name, value);
}

void only_staged(void)
{
	set_variable("GDRFAB_PATHS", "staged,nic,dmabuf,peer-mem,socket");
}

void unique_service(char *to, size_t size)
{
	static unsigned next;
	/* Below the kernel's range of ephemeral ports. */
	if (traits()->numbered)
		snprintf(to, size, "%u", 10000 + ((unsigned)getpid() * 16 + next++ % 16) % 22000);
	else if (getenv("TEST_VOLUME"))
		snprintf(to, size, "%s/c-%d-%u", getenv("TEST_VOLUME"), (int)getpid(), next++);
	else
		snprintf(to, size, "c-tests-%d-%u", (int)getpid(), next++);
}

const char *node_name(void)
{
	const char *node = getenv("TEST_NODE");
	return !traits()->numbered ? NULL : node && *node ? node : traits()->node;
}

void address_start(char *to, size_t size)
{
	const char *node = node_name() ? node_name() : "", *v6 = strchr(node, ':');
	snprintf(to, size, "%s%s%s%s%s", traits()->scheme, v6 ? "[" : "", node, v6 ? "]" : "",
		 traits()->numbered ? ":" : "");
}

static gdrfab_info *find(gdrfab_info *list)
{
	char own[GDRFAB_ADDR_MAX];
	gdrfab_info *i = list;
	address_start(own, sizeof own);
	for (; i; i = i->next) {
		bool any = !traits()->adapter || !node_name();
		bool here = any || (i->src_addr && strncmp(i->src_addr, own, strlen(own)) == 0);
		if (i->prov_name && strcmp(i->prov_name, provider()) == 0 && (here || i->reason_errno))
			return i;
	}
	return NULL;
}

gdrfab_info *provider_pick(gdrfab_info *list)
{
	gdrfab_info *found = find(list);
	if (!found)
		test_fail(__FILE__, __LINE__, "nothing of the provider %s in the list", provider());
	return found;
}

int provider_getinfo(const char *service, uint64_t flags, gdrfab_info *hints, gdrfab_info **info)
{
	/* The string is on this stack: it is taken out again before the caller frees the hints. */
	char *before = hints->prov_name, name[16];
	snprintf(name, sizeof name, "%s", provider());
	hints->prov_name = name;
	/* A process in a network namespace of its own listens at another address than the other side. */
	const char *own = flags & GDRFAB_SOURCE ? getenv("TEST_OWN_NODE") : NULL;
	int result = gdrfab_getinfo(GDRFAB_VERSION, own ? own : node_name(), service, flags, hints, info);
	hints->prov_name = before;
	if (result == 0 && traits()->adapter && node_name() && !(flags & GDRFAB_GETINFO_ALL)) {
		/* The list may be of another device, which offers something that this device lacks. */
		gdrfab_info *list = *info, *mine = find(list);
		*info = mine ? gdrfab_dupinfo(mine) : NULL;
		result = mine ? 0 : -ENODATA;
		gdrfab_freeinfo(list);
	}
	return result;
}

uint64_t wrong_key(uint64_t key)
{
	if (!traits()->adapter)
		return ~key;
	return key <= UINT32_MAX ? ~key & UINT32_MAX : key ^ 0xffffull << 24;
}

static bool is_iwarp(const struct node *n)
{
	return strcmp(n->info->fabric_name, "iWARP") == 0;
}

bool waits_for_receive(const struct node *n)
{
	return !is_iwarp(n);
}

bool tells_failed_writes(const struct node *n)
{
	return !is_iwarp(n);
}

uint64_t best_path(void)
{
	uint64_t known = traits()->paths;
	if (known & (GDRFAB_PATH_DIRECT | GDRFAB_PATH_NIC))
		return known & (GDRFAB_PATH_DIRECT | GDRFAB_PATH_NIC);
	return GDRFAB_PATH_SOCKET;
}

uint64_t helped_path(void)
{
	return traits()->adapter ? 0 : traits()->paths & GDRFAB_PATH_SOCKET ? GDRFAB_PATH_SOCKET : GDRFAB_PATH_STAGED;
}

bool by_address_too(const struct node *n)
{
	return !is_iwarp(n);
}

/* The provider's code for a failed completion of a queue pair is 100 plus the ibv_wc_status. */
enum {
	NIC_LENGTH = 101,
	NIC_FAILED_HERE = 102,
	NIC_FLUSHED = 105,
	NIC_INVALID = 109,
	NIC_ACCESS = 110,
	NIC_FAILED_THERE = 111,
	NIC_SILENCE = 112,
};

/* The errno and code that an adapter reports for a failure that shm reports with a GDRFAB_PROV_* code. */
static const struct {
	int prov;
	struct {
		int err, prov;
	} by_nic[4];
} failures[] = {
	{GDRFAB_PROV_KEY, {{EKEYREJECTED, NIC_ACCESS}}},
	{GDRFAB_PROV_BOUNDS, {{EKEYREJECTED, NIC_ACCESS}}},
	{GDRFAB_PROV_ACCESS, {{EKEYREJECTED, NIC_ACCESS}}},
	/* Posted operations are flushed; an operation under way may time out at the adapter. */
	{GDRFAB_PROV_PEER_GONE,
	 {{ECANCELED, GDRFAB_PROV_PEER_GONE},
	  {ECANCELED, GDRFAB_PROV_CANCELED},
	  {ETIMEDOUT, NIC_SILENCE},
	  {ECONNRESET, GDRFAB_PROV_PEER_GONE}}},
	{GDRFAB_PROV_CANCELED,
	 {{ECANCELED, GDRFAB_PROV_CANCELED}, {ECANCELED, GDRFAB_PROV_PEER_GONE}, {ECANCELED, NIC_FLUSHED}}},
	/* Some adapters report the sender's status to the receiver too; soft-RoCE reports a local failure of the receive,
	 * without a reason. */
	{GDRFAB_PROV_TRUNC, {{GDRFAB_ETRUNC, NIC_LENGTH}, {GDRFAB_ETRUNC, NIC_INVALID}, {EIO, NIC_FAILED_HERE}}},
	{TOO_LONG, {{EREMOTEIO, NIC_INVALID}, {EREMOTEIO, NIC_FAILED_THERE}}},
};

bool failure_is(const gdrfab_cq_err_entry *e, int err, int prov)
{
	if (e->err == err && e->prov_errno == prov)
		return true;
	if (traits()->survives_failures)
		return false;
	for (size_t i = 0; i < sizeof failures / sizeof failures[0]; i++)
		for (size_t k = 0; failures[i].prov == prov && k < 4; k++)
			if (e->err && e->err == failures[i].by_nic[k].err &&
			    e->prov_errno == failures[i].by_nic[k].prov)
				return true;
	return false;
}

bool failure_ends(uint64_t key)
{
	/* Longer keys are of memory that no adapter reaches: the library itself carries such operations, and the connection
	 * survives. */
	return !traits()->survives_failures && key <= UINT32_MAX;
}

bool flushed(const gdrfab_cq_err_entry *e)
{
	return !traits()->survives_failures && failure_is(e, ECANCELED, GDRFAB_PROV_CANCELED);
}

void *liar(const char *function)
{
	const char *path = getenv("TEST_LIBIBVERBS");
	void *library = path ? dlopen(path, RTLD_NOW) : NULL, *found = library ? dlsym(library, function) : NULL;
	if (!found)
		test_skip("no libibverbs that has %s (tests/vm)", function);
	return found;
}

const char *first_device(void)
{
	static char device[64];
	snprintf(device, sizeof device, "%.*s", (int)strcspn(getenv("TEST_RAILS"), ":"), getenv("TEST_RAILS"));
	return device;
}
