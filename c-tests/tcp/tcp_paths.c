/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Paths over tcp: the paths that host and device memory offer, and the path that an endpoint chooses, uses and reports. */
#include "fab.h"

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about sockets");
}

static gdrfab_mr_info query(gdrfab_mr *mr)
{
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(mr, &info));
	return info;
}

static int register_so(struct node *n, struct mem *m, uint64_t require, uint64_t forbid)
{
	struct iovec iov = {m->addr, m->len};
	gdrfab_mr_attr attr;
	memset(&attr, 0, sizeof attr);
	attr.struct_size = sizeof attr;
	attr.mr_iov = &iov;
	attr.iov_count = 1;
	attr.access = ANY_ACCESS;
	attr.iface = m->kind->iface;
	attr.device = m->device;
	attr.require = require;
	attr.forbid = forbid;
	m->mr = NULL;
	return gdrfab_mr_regattr(n->domain, &attr, 0, &m->mr);
}

static void paths_of(const void *arg)
{
	const struct memkind *kind = (const struct memkind *)arg;
	uint64_t own = kind->opaque ? GDRFAB_PATH_STAGED : GDRFAB_PATH_SOCKET;
	uint64_t other = kind->opaque ? GDRFAB_PATH_SOCKET : GDRFAB_PATH_STAGED;
	char words[2048];
	struct mem m;
	struct node n;
	only_tcp();
	node_alone(&n, NULL);
	mem_new(&n, &m, kind, 65536);
	OK(register_so(&n, &m, 0, 0));
	CHECK_EQ(query(m.mr).path, own);
	CHECK_EQ(query(m.mr).paths, own);
	CHECK(gdrfab_mr_explain(m.mr, words, sizeof words) > 0);
	if (!test_says(words, "socket") || !test_says(words, "staged"))
		test_fail(__FILE__, __LINE__, "the explanation does not tell of both paths: %s", words);
	OK(gdrfab_mr_close(m.mr));
	OK(register_so(&n, &m, own, 0));
	CHECK_EQ(query(m.mr).path, own);
	OK(gdrfab_mr_close(m.mr));
	OK(register_so(&n, &m, 0, other));
	CHECK_EQ(query(m.mr).path, own);
	OK(gdrfab_mr_close(m.mr));
	CHECK_EQ(register_so(&n, &m, other, 0), -EOPNOTSUPP);
	CHECK(m.mr == NULL);
	CHECK(test_says(gdrfab_last_error(), kind->opaque ? "socket" : "staged"));
	CHECK_EITHER(register_so(&n, &m, 0, own), -EOPNOTSUPP, -EINVAL);
	CHECK(m.mr == NULL);
	CHECK(gdrfab_last_error()[0] != 0);
	mem_end(&n, &m);
	node_close(&n);
}

static void has_both(struct node *n)
{
	const struct memkind *device = (const struct memkind *)n->arg;
	struct mem host, other;
	node_up(n);
	mem_new(n, &host, &memkinds[KIND_MALLOC], 65536);
	memset(host.addr, 0, host.len);
	mem_register(n, &host, 0, host.len, REMOTE_ACCESS, 0);
	mem_publish(n, &host);
	if (device) {
		mem_new(n, &other, device, 65536);
		mem_fill(&other, 0, other.len, 0, 1);
		mem_register(n, &other, 0, other.len, REMOTE_ACCESS, 0);
		mem_publish(n, &other);
	}
	char in[8];
	POST(n->cq, gdrfab_recv(n->ep, in, sizeof in, NULL, 0, in));
	barrier(n);
	DONE(n->cq, in, GDRFAB_RECV, NULL);
	if (device)
		mem_end(n, &other);
	mem_end(n, &host);
	node_down(n);
}

static gdrfab_stats stats_of(struct node *n)
{
	gdrfab_stats s;
	memset(&s, 0, sizeof s);
	s.struct_size = sizeof s;
	OK(gdrfab_ep_stats(n->ep, &s));
	return s;
}

static void option(struct node *n, int name, uint64_t bits)
{
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, name, &bits, sizeof bits));
}

static void put(struct node *n, struct remote to, int err)
{
	static char out[100];
	POST(n->cq, gdrfab_write(n->ep, out, sizeof out, NULL, 0, to.base, to.key, out));
	if (err)
		FAILED(n->cq, out, err, GDRFAB_PROV_PATH, NULL);
	else
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
}

static void get(struct node *n, struct remote from, int err)
{
	static char in[200];
	POST(n->cq, gdrfab_read(n->ep, in, sizeof in, NULL, 0, from.base, from.key, in));
	if (err)
		FAILED(n->cq, in, err, GDRFAB_PROV_PATH, NULL);
	else
		DONE(n->cq, in, GDRFAB_READ, NULL);
}

/* The reported path of an operation between host memory here and the peer's region. */
static void tells(struct node *n, uint64_t key, uint64_t path)
{
	gdrfab_path_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_ep_query(n->ep, 0, key, &info));
	CHECK_EQ(info.path, path);
	CHECK_EQ(info.paths, path);
	CHECK_EQ(info.reasons[PATH_SOCKET] == 0, path == GDRFAB_PATH_SOCKET);
	CHECK_EQ(info.reasons[PATH_STAGED] == 0, path == GDRFAB_PATH_STAGED);
	CHECK(info.reasons[PATH_DIRECT] && info.reasons[PATH_IPC] && info.reasons[PATH_CMA]);
	CHECK(info.reasons[PATH_NIC] && info.reasons[PATH_DMABUF] && info.reasons[PATH_PEER_MEM]);
}

static void chooses(struct node *n)
{
	const struct memkind *device = (const struct memkind *)n->arg;
	struct remote host, other = {0, 0, 0};
	char words[2048];
	node_up(n);
	host = mem_fetch(n);
	if (device)
		other = mem_fetch(n);
	CHECK(gdrfab_ep_explain(n->ep, 0, host.key, words, sizeof words) > 0);
	CHECK(test_says(words, "socket"));
	tells(n, host.key, GDRFAB_PATH_SOCKET);
	if (device)
		tells(n, other.key, GDRFAB_PATH_STAGED);
	for (int i = 0; i < 3; i++)
		put(n, host, 0);
	for (int i = 0; i < 2; i++)
		get(n, host, 0);
	gdrfab_stats s = stats_of(n);
	CHECK_EQ(s.by_path[PATH_SOCKET].ops, 5);
	CHECK_EQ(s.by_path[PATH_SOCKET].bytes, 3 * 100 + 2 * 200);
	CHECK_EQ(s.by_path[PATH_STAGED].ops + s.by_path[PATH_DIRECT].ops + s.by_path[PATH_NIC].ops + s.errors, 0);

	option(n, GDRFAB_OPT_REQUIRE_PATH, GDRFAB_PATH_SOCKET);
	put(n, host, 0);
	get(n, host, 0);
	if (device) {
		tells(n, other.key, 0);
		put(n, other, EOPNOTSUPP);
		get(n, other, EOPNOTSUPP);
	}
	/* Staging is a path for device memory on either side, not between host memory. */
	option(n, GDRFAB_OPT_REQUIRE_PATH, GDRFAB_PATH_STAGED);
	put(n, host, EOPNOTSUPP);
	get(n, host, EOPNOTSUPP);
	tells(n, host.key, 0);
	if (device) {
		put(n, other, 0);
		get(n, other, 0);
		CHECK_EQ(stats_of(n).by_path[PATH_STAGED].bytes, 100 + 200 + 100 + 200);
	}
	option(n, GDRFAB_OPT_REQUIRE_PATH, 0);
	option(n, GDRFAB_OPT_FORBID_PATH, GDRFAB_PATH_STAGED);
	put(n, host, 0);
	if (device)
		put(n, other, EOPNOTSUPP);
	option(n, GDRFAB_OPT_FORBID_PATH, GDRFAB_PATH_SOCKET);
	put(n, host, EOPNOTSUPP);
	if (device)
		put(n, other, 0);
	/* The options are about RMA; a message has no choice of paths. */
	POST(n->cq, gdrfab_send(n->ep, words, 8, NULL, 0, words));
	DONE(n->cq, words, GDRFAB_SEND, NULL);
	option(n, GDRFAB_OPT_FORBID_PATH, 0);
	put(n, host, 0);
	barrier(n);
	node_down(n);
}

static void paths_of_an_endpoint(const void *arg)
{
	only_tcp();
	pair(NULL, has_both, chooses, arg);
}

TEST_TABLE(paths)
{
	char name[96];
	size_t kinds = device_kinds_list();
	test_add("paths_of_malloc", paths_of, &memkinds[KIND_MALLOC], 20);
	test_add("paths_of_mem_alloc", paths_of, &memkinds[KIND_MEM_ALLOC], 20);
	test_add("paths_of_an_endpoint", paths_of_an_endpoint, NULL, 20);
	for (size_t k = 0; k < kinds; k++) {
		snprintf(name, sizeof name, "paths_of_%s", device_kinds[k]->name);
		test_add(name, paths_of, device_kinds[k], 20);
		if (!device_kinds[k]->opaque || kind_spared(device_kinds[k]))
			continue;
		snprintf(name, sizeof name, "paths_of_an_endpoint_to_%s", device_kinds[k]->name);
		test_add(name, paths_of_an_endpoint, device_kinds[k], 20);
	}
}
