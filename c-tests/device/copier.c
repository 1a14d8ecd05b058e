/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Endpoints that call no device driver in their process (GDRFAB_OPT_DRIVER_CALLS, GDRFAB_HMEM_DRIVER=process): another process, the
 * copier, copies device memory. Operations that need a driver here are refused with a reason, and the end of the copier ends
 * operations and not the program.
 */
#include "fab.h"

#include <dlfcn.h>
#include <signal.h>
#include <unistd.h>

#define LEN ((size_t)300000)
#define WRITES 300

/* The number of driver calls by this thread; 0 with a real driver, which does not count them. */
static int driver_calls(const struct memkind *kind)
{
	static const char *const libraries[] = {
		[GDRFAB_HMEM_CUDA] = "libcuda.so.1",
		[GDRFAB_HMEM_ROCR] = "libhsa-runtime64.so.1",
		[GDRFAB_HMEM_ZE] = "libze_loader.so.1",
	};
	int (*calls)(void) = NULL;
	void *library = getenv("GDRFAB_FAKES") ? dlopen(libraries[kind->iface], RTLD_NOW | RTLD_NOLOAD) : NULL;
	if (!library)
		return 0;
	*(void **)&calls = dlsym(library, "fake_calls_of_thread");
	CHECK(calls != NULL);
	return calls();
}

static void memory(struct node *n, struct mem *m, const struct memkind *kind)
{
	mem_new(n, m, kind, LEN);
	mem_register(n, m, 0, LEN, ANY_ACCESS, 0);
}

/* --- copies --- */

static void copies_target(struct node *n)
{
	const struct memkind *kind = (const struct memkind *)n->arg;
	struct mem m;
	done entry;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	node_up(n);
	memory(n, &m, kind);
	mem_fill(&m, 0, LEN, 0, 1);
	mem_publish(n, &m);
	DATA_CAME(n, &entry);
	CHECK_EQ(entry.data, 77);
	CHECK_MEM("what was written", &m, 100, LEN - 300, 0, 2);
	CHECK_MEM("what lies before it", &m, 0, 100, 0, 1);
	CHECK_MEM("what lies behind it", &m, LEN - 200, 200, LEN - 200, 1);
	barrier(n);
	barrier(n);
	CHECK_MEM("the last of many writes", &m, 0, 4096, 4096, 100 + WRITES - 1);
	mem_end(n, &m);
	node_down(n);
}

static void copies_initiator(struct node *n)
{
	const struct memkind *kind = (const struct memkind *)n->arg;
	uint64_t bytes[PATHS];
	struct mem m, one, other;
	uint32_t off = 0, value = 1;
	size_t len = sizeof value;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	copier_up(n);
	OK(gdrfab_ep_getopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &value, &len));
	CHECK_EQ(value, 0);
	CHECK_EQ(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &off, sizeof off),
		 -GDRFAB_EOPBADSTATE);
	memory(n, &m, kind);
	mem_fill(&m, 0, LEN, 0, 2);
	struct remote peer = mem_fetch(n);
	pid_t pid = copier_of(n, peer.key);
	CHECK(pid > 0 && pid != getpid() && pid != n->peer);

	int calls = driver_calls(kind);
	POST(n->cq, gdrfab_writedata(n->ep, m.addr, LEN - 300, mem_desc(&m), 77, 0, peer.base + 100, peer.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	barrier(n);
	POST(n->cq, gdrfab_read(n->ep, m.addr + 1000, 5000, mem_desc(&m), 0, peer.base, peer.key, &peer));
	DONE(n->cq, &peer, GDRFAB_READ, NULL);
	CHECK_EQ(driver_calls(kind), calls);
	CHECK_MEM("what was read", &m, 1100, 4900, 0, 2);
	CHECK_MEM("what was read first", &m, 1000, 100, 0, 1);

	/* In the order of posting, also if several copies are given to the driver together, and after a sleep. */
	mem_new(n, &one, kind, LEN);
	mem_new(n, &other, kind, LEN);
	for (int i = 0; i < 40; i++)
		mem_fill(&one, (size_t)i * 4096, 4096, 4096, 100u + WRITES - 40 + (uint32_t)i);
	mem_register(n, &one, 0, LEN, ANY_ACCESS, 0);
	mem_register(n, &other, 0, LEN, ANY_ACCESS, 0);
	test_sleep_ms(30);
	calls = driver_calls(kind);
	for (int i = 0, ended = 0; i < WRITES || ended < WRITES;) {
		const struct mem *from = i < WRITES - 40 ? &other : &one;
		size_t at = i < WRITES - 40 ? 0 : (size_t)(i - (WRITES - 40)) * 4096;
		done entry;
		ssize_t rc = i == WRITES ? -EAGAIN
					 : gdrfab_write(n->ep, from->addr + at, 4096, mem_desc(from), 0, peer.base, peer.key,
							&peer);
		CHECK_EITHER(rc, 0, -EAGAIN);
		i += rc == 0;
		if (rc && cq_next(n->cq, &entry, 10000) == 1)
			ended++;
		else if (rc)
			test_fail(__FILE__, __LINE__, "%d of %d writes ended, and no more", ended, i);
	}
	CHECK_EQ(driver_calls(kind), calls);
	path_bytes(n, bytes);
	for (int p = 0; p < PATHS; p++)
		CHECK_EQ(bytes[p], p == PATH_IPC ? LEN - 300 + 5000 + WRITES * 4096 : 0);
	barrier(n);
	mem_end(n, &other);
	mem_end(n, &one);
	mem_end(n, &m);
	node_down(n);
}

static void copies(const void *arg)
{
	pair(NULL, copies_target, copies_initiator, arg);
}

/* --- operations that need a driver --- */

static void needs_target(struct node *n)
{
	struct mem device, host;
	char text[16];
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	node_up(n);
	memory(n, &device, (const struct memkind *)n->arg);
	memory(n, &host, &memkinds[KIND_MEM_ALLOC]);
	mem_publish(n, &device);
	mem_publish(n, &host);
	OK(gdrfab_recv(n->ep, text, sizeof text, local_desc(n, text, sizeof text), 0, text));
	DONE(n->cq, text, GDRFAB_RECV, NULL);
	CHECK(strcmp(text, "host memory") == 0);
	barrier(n);
	mem_end(n, &host);
	mem_end(n, &device);
	node_down(n);
}

static void needs_initiator(struct node *n)
{
	struct mem device, host;
	struct failure f;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	copier_up(n);
	memory(n, &device, (const struct memkind *)n->arg);
	memory(n, &host, &memkinds[KIND_MEM_ALLOC]);
	struct remote far_device = mem_fetch(n), far_host = mem_fetch(n);

	POST(n->cq, gdrfab_write(n->ep, host.addr, 100, mem_desc(&host), 0, far_device.base, far_device.key, &host));
	FAILED(n->cq, &host, EOPNOTSUPP, GDRFAB_PROV_PATH, &f);
	SAYS(f.words, "GDRFAB_OPT_DRIVER_CALLS");
	POST(n->cq, gdrfab_read(n->ep, device.addr, 100, mem_desc(&device), 0, far_host.base, far_host.key, &device));
	FAILED(n->cq, &device, EOPNOTSUPP, GDRFAB_PROV_PATH, &f);
	SAYS(f.words, "GDRFAB_OPT_DRIVER_CALLS");
	CHECK_EQ(gdrfab_send(n->ep, device.addr, 100, mem_desc(&device), 0, &device), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "GDRFAB_OPT_DRIVER_CALLS");
	CHECK_EQ(gdrfab_recv(n->ep, device.addr, 100, mem_desc(&device), 0, &device), -EOPNOTSUPP);

	struct iovec iov = {device.addr, 8};
	void *desc = mem_desc(&device);
	gdrfab_rma_iov at = {.addr = far_device.base, .len = 8, .key = far_device.key};
	gdrfab_msg_rma message;
	memset(&message, 0, sizeof message);
	message.struct_size = sizeof message;
	message.msg_iov = &iov;
	message.desc = &desc;
	message.iov_count = 1;
	message.rma_iov = &at;
	message.rma_iov_count = 1;
	CHECK_EQ(gdrfab_writemsg(n->ep, &message, GDRFAB_INJECT), -EOPNOTSUPP);
	SAYS(gdrfab_last_error(), "inject");

	uint64_t stream = 2, none = 0;
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &stream, sizeof stream));
	POST(n->cq, gdrfab_write(n->ep, device.addr, 100, desc, 0, far_device.base, far_device.key, &stream));
	FAILED(n->cq, &stream, ENOSYS, 0, &f);
	SAYS(f.words, "GDRFAB_OPT_STREAM");
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_STREAM, &none, sizeof none));

	/* Transfers between host memory work as usual. */
	mem_write(&host, 0, "host memory", 12);
	POST(n->cq, gdrfab_write(n->ep, host.addr, 100, mem_desc(&host), 0, far_host.base, far_host.key, &host));
	DONE(n->cq, &host, GDRFAB_WRITE, NULL);
	POST(n->cq, gdrfab_send(n->ep, host.addr, 12, mem_desc(&host), 0, &host));
	DONE(n->cq, &host, GDRFAB_SEND, NULL);
	barrier(n);
	mem_end(n, &host);
	mem_end(n, &device);
	node_down(n);
}

static void needs_a_driver(const void *arg)
{
	pair(NULL, needs_target, needs_initiator, arg);
}

/* --- a peer that wants this process to copy --- */

static void staged_target(struct node *n)
{
	struct mem m;
	set_variable("GDRFAB_HMEM_DRIVER", "process");
	node_up(n);
	memory(n, &m, (const struct memkind *)n->arg);
	mem_publish(n, &m);
	int calls = driver_calls((const struct memkind *)n->arg);
	barrier(n);
	CHECK_EQ(driver_calls((const struct memkind *)n->arg), calls);
	mem_end(n, &m);
	node_down(n);
}

static void staged_initiator(struct node *n)
{
	static char host[256];
	only_staged();
	node_up(n);
	struct remote peer = mem_fetch(n);
	void *desc = local_desc(n, host, sizeof host);
	POST(n->cq, gdrfab_write(n->ep, host, sizeof host, desc, 0, peer.base, peer.key, host));
	FAILED(n->cq, host, EOPNOTSUPP, GDRFAB_PROV_PATH, NULL);
	POST(n->cq, gdrfab_read(n->ep, host, sizeof host, desc, 0, peer.base, peer.key, host));
	FAILED(n->cq, host, EOPNOTSUPP, GDRFAB_PROV_PATH, NULL);
	barrier(n);
	node_down(n);
}

static void a_staged_peer_is_refused(const void *arg)
{
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	pair(NULL, staged_target, staged_initiator, arg);
}

/* --- the end of the copier --- */

static void deserted_target(struct node *n)
{
	struct mem m;
	node_up(n);
	memory(n, &m, (const struct memkind *)n->arg);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void deserted(struct node *n)
{
	struct mem m;
	struct failure f;
	copier_up(n);
	memory(n, &m, (const struct memkind *)n->arg);
	struct remote peer = mem_fetch(n);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, peer.base, peer.key, &m));
	DONE(n->cq, &m, GDRFAB_WRITE, NULL);
	CHECK_EQ(kill(copier_of(n, peer.key), SIGKILL), 0);
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, peer.base, peer.key, &m));
	FAILED(n->cq, &m, EIO, GDRFAB_PROV_FAULT, &f);
	SAYS(f.words, "ended");
	/* Later operations fail as well. */
	POST(n->cq, gdrfab_write(n->ep, m.addr, LEN, mem_desc(&m), 0, peer.base, peer.key, &peer));
	FAILED(n->cq, &peer, EIO, 0, &f);
	SAYS(f.words, "ended");
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void it_is_killed(const void *arg)
{
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	pair(NULL, deserted_target, deserted, arg);
}

/* --- the option --- */

static int forbid(struct node *n, gdrfab_ep *ep)
{
	uint32_t off = 0;
	(void)n;
	return gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &off, sizeof off);
}

static uint32_t permitted(gdrfab_ep *ep)
{
	uint32_t value = 9;
	size_t len = sizeof value;
	OK(gdrfab_ep_getopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &value, &len));
	CHECK_EQ(len, sizeof value);
	return value;
}

TEST(the_option)
{
	struct node n;
	uint32_t two = 2, on = 1;
	node_alone(&n, NULL);
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(permitted(ep), 1);
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &on, sizeof on));
	CHECK_EQ(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &two, sizeof two), -EINVAL);
	SAYS(gdrfab_last_error(), "optval");
	if (path_known(PATH_IPC)) {
		OK(forbid(&n, ep));
		CHECK_EQ(permitted(ep), 0);
		OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_DRIVER_CALLS, &on, sizeof on));
		CHECK_EQ(permitted(ep), 1);
	} else {
		CHECK_EQ(forbid(&n, ep), -EOPNOTSUPP);
		SAYS(gdrfab_last_error(), "driver");
		CHECK_EQ(permitted(ep), 1);
	}
	OK(gdrfab_ep_close(ep));
	n.drivers = true; /* The connection to the copying process stays. */
	node_close(&n);
}

TEST(no_program)
{
	struct node n;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	set_variable("GDRFAB_DEBUG", "copier=/nonexistent/gdrfab-copier");
	node_alone(&n, NULL);
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(forbid(&n, ep), -ENOENT);
	SAYS(gdrfab_last_error(), "/nonexistent/gdrfab-copier");
	CHECK_EQ(permitted(ep), 1);
	OK(gdrfab_ep_close(ep));
	node_close(&n);
}

TEST(another_program)
{
	struct node n;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	set_variable("GDRFAB_DEBUG", "copier=/bin/true");
	node_alone(&n, NULL);
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(forbid(&n, ep), -EIO);
	SAYS(gdrfab_last_error(), "/bin/true");
	OK(gdrfab_ep_close(ep));
	node_close(&n);
}

/* If the driver fails in the copier, this is reported before connecting. */
TEST(it_has_no_driver)
{
	struct node n;
	struct mem m;
	skip_unless(path_known(PATH_IPC), "it has no ipc path");
	if (!getenv("GDRFAB_FAKES") || !device_kinds_list())
		test_skip("a real driver cannot be told to fail");
	node_alone(&n, NULL);
	mem_new(&n, &m, device_kinds[0], LEN);
	if (m.kind->iface != GDRFAB_HMEM_CUDA)
		test_skip("of CUDA alone it is known whether a device is in use");
	setenv("FAKE_FAULT", "cuDevicePrimaryCtxRetain=46", 1);
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(forbid(&n, ep), -EBUSY);
	SAYS(gdrfab_last_error(), "46");
	unsetenv("FAKE_FAULT");
	OK(gdrfab_ep_close(ep));
	mem_end(&n, &m);
	n.drivers = true;
	node_close(&n);
}

TEST_TABLE(kinds)
{
	static char names[DEVICE_KINDS][4][80];
	static const struct {
		const char *name;
		test_fn claim;
	} claims[] = {{"copies", copies},
		      {"needs_a_driver", needs_a_driver},
		      {"a_staged_peer_is_refused", a_staged_peer_is_refused},
		      {"it_is_killed", it_is_killed}};
	for (size_t k = 0; k < device_kinds_list(); k++) {
		const struct memkind *kind = device_kinds[k];
		bool first = k == 0 || device_kinds[k - 1]->iface != kind->iface;
		if (!kind->opaque || !(kind->paths & GDRFAB_PATH_IPC))
			continue;
		for (size_t c = 0; c < 4 && (c == 0 || first) && !kind_spared(kind); c++) {
			snprintf(names[k][c], sizeof names[k][c], "%s_%s", claims[c].name, kind->name);
			test_add(names[k][c], claims[c].claim, kind, 60);
		}
	}
}
