/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Compatibility: a second libfabric in the process that comes and goes, clients of old versions with shorter error
 * entries, clients that leave unrequested fields unset, and layers above that look at limits and logs.
 */
#include "fi.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/fi_tagged.h>
#include <sys/wait.h>

/* --- other libfabrics --- */

struct other {
	char path[64];
	void *library;
	int (*getinfo)(uint32_t version, const char *node, const char *service, uint64_t flags, const struct fi_info *hints,
		       struct fi_info **info);
	void (*freeinfo)(struct fi_info *info);
	struct fi_info *(*dupinfo)(const struct fi_info *info);
	int (*fabric)(struct fi_fabric_attr *attr, struct fid_fabric **fabric, void *context);
	struct fi_info *info;
	struct fid_fabric *made;
	struct fid_eq *eq;
};

/* To the loader a copy of the file is another library. */
static void other_load(struct other *o)
{
	static char bytes[65536];
	Dl_info at;
	ssize_t n;
	memset(o, 0, sizeof *o);
	CHECK(dladdr((void *)(uintptr_t)fi_getinfo, &at) != 0);
	strcpy(o->path, "/tmp/gdrfab-libfabric-XXXXXX");
	int from = open(at.dli_fname, O_RDONLY), to = mkstemp(o->path);
	CHECK(from >= 0 && to >= 0);
	while ((n = read(from, bytes, sizeof bytes)) > 0)
		CHECK_EQ(write(to, bytes, (size_t)n), n);
	close(from);
	close(to);
	o->library = dlopen(o->path, RTLD_NOW | RTLD_LOCAL);
	unlink(o->path);
	if (!o->library)
		test_skip("no second libfabric: %s", dlerror());
	*(void **)&o->getinfo = dlsym(o->library, "fi_getinfo");
	*(void **)&o->freeinfo = dlsym(o->library, "fi_freeinfo");
	*(void **)&o->dupinfo = dlsym(o->library, "fi_dupinfo");
	*(void **)&o->fabric = dlsym(o->library, "fi_fabric");
	CHECK(o->getinfo && o->freeinfo && o->dupinfo && o->fabric);
	CHECK(o->getinfo != fi_getinfo);
}

/* False: this libfabric does not have the provider. */
static bool other_ask(struct other *o)
{
	struct fi_info *hints = o->dupinfo(NULL);
	hints->caps = FI_MSG | FI_RMA;
	hints->ep_attr->type = FI_EP_MSG;
	hints->mode = ~0ull;
	hints->domain_attr->mr_mode = KNOWN_MR_MODES;
	hints->fabric_attr->prov_name = strdup(fi_provider());
	int rc = o->getinfo(FI_VERSION(1, 15), NULL, NULL, 0, hints, &o->info);
	o->freeinfo(hints);
	CHECK(rc == 0 || rc == -FI_ENODATA);
	return rc == 0;
}

static void other_use(struct other *o)
{
	struct fi_eq_attr attr = {.wait_obj = FI_WAIT_NONE};
	CHECK(other_ask(o));
	CHECK_EQ(strcmp(o->info->fabric_attr->prov_name, fi_provider()), 0);
	OK(o->fabric(o->info->fabric_attr, &o->made, NULL));
	OK(fi_eq_open(o->made, &attr, &o->eq, NULL));
	/* A call that writes to the log. */
	CHECK(fi_eq_write(o->eq, ~0u, NULL, 0, 0) < 0);
}

static void other_down(struct other *o)
{
	if (o->eq)
		CLOSE(o->eq);
	if (o->made)
		CLOSE(o->made);
	if (o->info)
		o->freeinfo(o->info);
	CHECK_EQ(dlclose(o->library), 0);
}

/* The first libfabric still works: asking, logging, copying and freeing an info. */
static void first_works(struct node *n, const struct setup *setup)
{
	struct fi_info *hints = hints_new(setup), *list;
	struct fid_pep *pep;
	unsigned char addr[ADDR_MAX];
	size_t len = 1;
	OK(provider_getinfo(NULL, NULL, 0, hints, &list));
	fi_freeinfo(list);
	hints->caps = FI_COLLECTIVE; /* the log has the reason why there is none */
	CHECK_EQ(provider_getinfo(NULL, NULL, 0, hints, &list), -FI_ENODATA);
	fi_freeinfo(hints);
	CHECK(fi_eq_write(n->eq, ~0u, NULL, 0, 0) < 0);
	OK(fi_passive_ep(n->fabric, n->info, &pep, NULL));
	OK(fi_pep_bind(pep, &n->eq->fid, 0));
	CHECK_EQ(fi_getname(&pep->fid, addr, &len), -FI_ETOOSMALL);
	CLOSE(pep);
}

/* {opened before the first's objects, after} x {another is used, only loaded} x {gone before, after use of the first} */
static void comes_and_goes(const void *arg)
{
	int which = *(const int *)arg;
	static const struct setup setup = {.eq_wait = FI_WAIT_NONE};
	struct other o;
	struct node n;
	skip_unless(is_gdrfab(), "is another's");
	setenv("FI_LOG_LEVEL", "debug", 1);
	/* The log goes to stderr, where nobody needs it. */
	int nowhere = open("/dev/null", O_WRONLY);
	dup2(nowhere, 2);
	if (which & 1)
		other_load(&o);
	node_alone(&n, &setup);
	if (!(which & 1))
		other_load(&o);
	if (which & 2)
		other_use(&o);
	first_works(&n, &setup);
	if (!(which & 2))
		other_ask(&o);
	if (which & 4)
		other_down(&o);
	first_works(&n, &setup);
	node_close(&n);
	if (!(which & 4))
		other_down(&o);
	/* Another libfabric at the same place. */
	other_load(&o);
	other_use(&o);
	other_down(&o);
}

/* More libfabrics than the provider can know at a time: the extra ones are not served, and nothing else happens to
 * them. */
static void many_libfabrics(TEST_UNUSED const void *arg)
{
	static struct other others[9];
	static const struct setup setup = {.eq_wait = FI_WAIT_NONE};
	struct node n;
	skip_unless(is_gdrfab(), "is another's");
	node_alone(&n, &setup);
	int served = 0;
	for (int i = 0; i < 9; i++) {
		other_load(&others[i]);
		served += other_ask(&others[i]);
	}
	CHECK_EQ(served, 7);
	first_works(&n, &setup);
	for (int i = 0; i < 9; i++)
		other_down(&others[i]);
	first_works(&n, &setup);
	node_close(&n);
}

/* --- old clients --- */

static const uint32_t versions[] = {FI_VERSION(1, 0), FI_VERSION(1, 4), FI_VERSION(1, 5), FI_VERSION(1, 17)};

#define UNTOUCHED(entry, from)                                                                                         \
	for (size_t at_ = (from); at_ < sizeof(entry); at_++)                                                          \
	CHECK_EQ((entry).bytes[at_], 0x5a)

static void old_entries(const void *arg)
{
	struct setup setup = {.version = *(const uint32_t *)arg, .eq_wait = FI_WAIT_NONE};
	bool old = FI_VERSION_LT(setup.version, FI_VERSION(1, 5));
	union {
		struct fi_cq_err_entry e;
		unsigned char bytes[sizeof(struct fi_cq_err_entry) + 64];
	} failed;
	union {
		struct fi_eq_err_entry e;
		unsigned char bytes[sizeof(struct fi_eq_err_entry) + 64];
	} lost;
	static char room[64];
	struct node n;
	if (old)
		setup.mr_mode = FI_MR_BASIC;
	node_alone(&n, &setup);
	skip_unless(is_gdrfab(), "is another's");
	CHECK_EQ(n.fabric->api_version, setup.version);
	struct fid_ep *ep = ep_new(&n, n.info, NULL);
	int context;
	OK(fi_recv(ep, room, sizeof room, local_desc(&n, room, sizeof room), 0, &context));
	OK(fi_cancel(&ep->fid, &context));
	memset(&failed, 0x5a, sizeof failed);
	if (!old)
		failed.e.err_data_size = 0;
	ssize_t rc = -FI_EAGAIN;
	for (uint64_t until = test_now_ms() + 5000; rc == -FI_EAGAIN && test_now_ms() < until;) {
		fi_cq_read(n.cq, NULL, 0);
		rc = fi_cq_readerr(n.cq, &failed.e, 0);
	}
	CHECK_EQ(rc, 1);
	CHECK(failed.e.op_context == &context);
	CHECK_EQ(failed.e.err, FI_ECANCELED);
	UNTOUCHED(failed, old ? offsetof(struct fi_cq_err_entry, err_data_size) : sizeof failed.e);
	CHECK(fi_cq_strerror(n.cq, failed.e.prov_errno, failed.e.err_data, NULL, 0) != NULL);
	CLOSE(ep);
	/* Nothing listens there. */
	ep = ep_new(&n, n.info, NULL);
	struct fid_pep *pep = pep_new(&n, n.info, NULL);
	unsigned char addr[ADDR_MAX];
	size_t len = sizeof addr;
	OK(fi_getname(&pep->fid, addr, &len));
	CLOSE(pep);
	rc = fi_connect(ep, addr, NULL, 0);
	if (rc == 0) {
		memset(&lost, 0x5a, sizeof lost);
		if (!old)
			lost.e.err_data_size = 0;
		rc = -FI_EAGAIN;
		for (uint64_t until = test_now_ms() + 10000; rc == -FI_EAGAIN && test_now_ms() < until;)
			rc = fi_eq_readerr(n.eq, &lost.e, 0);
		CHECK_EQ(rc, old ? offsetof(struct fi_eq_err_entry, err_data_size) : sizeof lost.e);
		CHECK(lost.e.fid == &ep->fid && lost.e.err != 0);
		UNTOUCHED(lost, old ? offsetof(struct fi_eq_err_entry, err_data_size) : sizeof lost.e);
	}
	CLOSE(ep);
	node_close(&n);
}

/* Fields of an unrequested capability may hold any value. */
TEST(regions_without_hmem_have_no_interface)
{
	static const struct setup setup = {.eq_wait = FI_WAIT_NONE};
	struct node n;
	skip_unless(is_gdrfab(), "is another's");
	node_alone(&n, &setup);
	char *at = pages(8192);
	struct iovec iov = {at, 8192};
	for (int iface = 0; iface < 12; iface++) {
		struct fid_mr *mr;
		struct fi_mr_attr attr;
		memset(&attr, 0x5a, sizeof attr);
		attr.mr_iov = &iov;
		attr.iov_count = 1;
		attr.access = ANY_ACCESS;
		attr.offset = 0;
		attr.requested_key = 0;
		attr.context = NULL;
		attr.auth_key_size = 0;
		attr.auth_key = NULL;
		if (iface < 11)
			attr.iface = (enum fi_hmem_iface)iface;
		OK(fi_mr_regattr(n.domain, &attr, 0, &mr));
		CLOSE(mr);
	}
	node_close(&n);
}

/* --- layers above --- */

/* {pieces of a send} x {bytes of each}: to itself, through a layer that prepends a header of its own. */
TEST_WITHIN(40, pieces_through_a_layer)
{
	struct fi_info *hints = fi_allocinfo(), *info;
	struct fid_fabric *fabric;
	struct fid_domain *domain;
	struct fid_ep *ep;
	struct fid_cq *cq;
	struct fid_av *av;
	struct fi_cq_attr cq_attr = {.format = FI_CQ_FORMAT_DATA};
	struct fi_av_attr av_attr = {.type = FI_AV_TABLE};
	static char from[40000], to[40000], name[128];
	/* A process sees only the providers that its environment names at the first call. */
	snprintf(name, sizeof name, "%s;ofi_rxm", fi_provider());
	unsetenv("FI_PROVIDER");
	hints->ep_attr->type = FI_EP_RDM;
	hints->caps = FI_MSG;
	hints->domain_attr->mr_mode = ~(FI_MR_BASIC | FI_MR_SCALABLE | FI_MR_LOCAL);
	hints->fabric_attr->prov_name = strdup(name);
	int rc = fi_getinfo(FI_VERSION(1, 15), node_name() ? node_name() : "127.0.0.1", NULL, FI_SOURCE, hints, &info);
	skip_unless(rc == 0, "no ofi_rxm on top of it here");
	OK(fi_fabric(info->fabric_attr, &fabric, NULL));
	OK(fi_domain(fabric, info, &domain, NULL));
	OK(fi_endpoint(domain, info, &ep, NULL));
	OK(fi_cq_open(domain, &cq_attr, &cq, NULL));
	OK(fi_av_open(domain, &av_attr, &av, NULL));
	OK(fi_ep_bind(ep, &cq->fid, FI_TRANSMIT | FI_RECV));
	OK(fi_ep_bind(ep, &av->fid, 0));
	OK(fi_enable(ep));
	size_t len = sizeof name, limit = info->tx_attr->iov_limit;
	fi_addr_t self;
	OK(fi_getname(&ep->fid, name, &len));
	CHECK_EQ(fi_av_insert(av, name, 1, &self, 0, NULL), 1);
	CHECK(limit >= 1 && limit <= 16);
	for (size_t i = 0; i < sizeof from; i++)
		from[i] = (char)(i * 7 + i / 251);
	for (size_t count = 1; count <= limit; count++)
		for (size_t each = 1; each <= 10000 && each * count <= sizeof from; each = each * 10 + 1) {
			struct iovec iov[16];
			int ended = 0;
			ssize_t sent = -FI_EAGAIN;
			memset(to, 0, sizeof to);
			for (size_t i = 0; i < count; i++)
				iov[i] = (struct iovec){from + i * each, each};
			OK(fi_recv(ep, to, sizeof to, NULL, self, NULL));
			for (uint64_t until = test_now_ms() + 10000; ended < 2 && test_now_ms() < until;) {
				struct fi_cq_data_entry entry;
				if (sent == -FI_EAGAIN)
					sent = fi_sendv(ep, iov, NULL, count, self, NULL);
				ssize_t got = fi_cq_read(cq, &entry, 1);
				CHECK(got == 1 || got == -FI_EAGAIN);
				ended += got == 1;
			}
			CHECK_EQ(sent, 0);
			CHECK_EQ(ended, 2);
			for (size_t i = 0; i < count * each; i++)
				if (to[i] != from[i])
					test_fail(__FILE__, __LINE__, "%zu pieces of %zu bytes: byte %zu is wrong", count, each, i);
		}
	CLOSE(ep);
	CLOSE(av);
	CLOSE(cq);
	CLOSE(domain);
	CLOSE(fabric);
	fi_freeinfo(info);
	fi_freeinfo(hints);
}

static void *writes_late(void *arg)
{
	struct fi_eq_entry e = {0};
	test_sleep_ms(100);
	fi_eq_write((struct fid_eq *)arg, FI_NOTIFY, &e, sizeof e, 0);
	return NULL;
}

/* A queue of any wait object but FI_WAIT_NONE has a descriptor, which wakes a sleeper for old and for new events. */
TEST(event_queues_have_a_descriptor)
{
	static const struct setup setup = {.eq_wait = FI_WAIT_NONE};
	static const enum fi_wait_obj objects[] = {FI_WAIT_UNSPEC, FI_WAIT_FD};
	struct node n;
	node_alone(&n, &setup);
	for (int late = 0; late < 2; late++)
		for (size_t i = 0; i < 2; i++) {
			struct fi_eq_attr attr = {.wait_obj = objects[i], .flags = FI_WRITE};
			struct fi_eq_entry e = {0};
			struct fid_eq *eq;
			enum fi_wait_obj object = FI_WAIT_NONE;
			pthread_t thread;
			uint32_t event;
			int fd = -1;
			OK(fi_eq_open(n.fabric, &attr, &eq, NULL));
			OK(fi_control(&eq->fid, FI_GETWAITOBJ, &object));
			CHECK_EQ(object, FI_WAIT_FD);
			OK(fi_control(&eq->fid, FI_GETWAIT, &fd));
			struct fid *fids[] = {&eq->fid};
			struct pollfd p = {.fd = fd, .events = POLLIN};
			OK(fi_trywait(n.fabric, fids, 1));
			CHECK_EQ(poll(&p, 1, 0), 0);
			if (late)
				CHECK_EQ(pthread_create(&thread, NULL, writes_late, eq), 0);
			else
				CHECK_EQ(fi_eq_write(eq, FI_NOTIFY, &e, sizeof e, 0), sizeof e);
			CHECK_EQ(poll(&p, 1, test_ms(5000)), 1);
			if (late)
				pthread_join(thread, NULL);
			CHECK_EQ(fi_trywait(n.fabric, fids, 1), -FI_EAGAIN);
			CHECK_EQ(fi_eq_read(eq, &event, &e, sizeof e, 0), sizeof e);
			CHECK_EQ(event, FI_NOTIFY);
			CLOSE(eq);
		}
	node_close(&n);
}

/* Layers drop errnos, so a client's error is in the log. */
TEST(wrong_arguments_are_in_the_log)
{
	static const struct setup setup = {.eq_wait = FI_WAIT_NONE};
	static char text[65536];
	struct node n;
	skip_unless(is_gdrfab(), "is another's");
	int log = open("/tmp", O_TMPFILE | O_RDWR, 0600), own = dup(2);
	CHECK(log >= 0 && own >= 0);
	setenv("FI_LOG_LEVEL", "warn", 1);
	setenv("FI_LOG_PROV", "gdrfab", 1);
	dup2(log, 2);
	node_alone(&n, &setup);
	struct fid_ep *ep = ep_new(&n, n.info, NULL);
	struct iovec iov[2] = {{text, 10}, {NULL, 4}};
	void *descs[2];
	ssize_t rc = fi_sendv(ep, iov, local_descs(&n, iov, 1, descs), 2, 0, NULL);
	CLOSE(ep);
	node_close(&n);
	dup2(own, 2);
	CHECK(rc < 0 && rc != -FI_EAGAIN);
	CHECK(pread(log, text, sizeof text - 1, 0) > 0);
	if (!strstr(text, "fi_sendv: iov[1]"))
		test_fail(__FILE__, __LINE__, "fi_sendv is %s, and the log says \"%s\"", test_number(rc), text);
}

TEST_TABLE(compat)
{
	static const int which[] = {0, 1, 2, 3, 4, 5, 6, 7};
	static const char *const names[] = {"1.0", "1.4", "1.5", "1.17"};
	char name[64];
	for (size_t i = 0; i < 8; i++) {
		snprintf(name, sizeof name, "another_libfabric_%s%s%s", i & 1 ? "first" : "second", i & 2 ? "_used" : "",
			 i & 4 ? "_gone_early" : "");
		test_add(name, comes_and_goes, &which[i], 30);
	}
	test_add("many_libfabrics", many_libfabrics, NULL, 40);
	for (size_t i = 0; i < 4; i++) {
		snprintf(name, sizeof name, "error_entries_of_version_%s", names[i]);
		test_add(name, old_entries, &versions[i], 30);
	}
}
