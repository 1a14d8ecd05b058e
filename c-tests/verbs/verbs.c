/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Claims about RDMA devices alone: the kernel's limit on locked memory, missing receives, links that go down and devices that are
 * removed. The last two break the machine's RDMA set-up for a moment, so they run only with TEST_BREAK=1, in a virtual
 * machine.
 */
#include "fab.h"

#include <sys/resource.h>

static void only_here(void)
{
	skip_unless(strcmp(provider(), "verbs") == 0, "this is about RDMA devices");
}

/* "rxe0" of "rxe0:1:roce-v2". */
static void device_of(const struct node *n, char *to, size_t size)
{
	snprintf(to, size, "%s", n->info->domain_name);
	to[strcspn(to, ":")] = 0;
}

/* The network device below the RDMA device. */
static void netdev_of(const struct node *n, char *to, size_t size)
{
	char device[64], path[160];
	device_of(n, device, sizeof device);
	snprintf(path, sizeof path, "/sys/class/infiniband/%s/ports/1/gid_attrs/ndevs/0", device);
	FILE *file = fopen(path, "r");
	if (!file || !fgets(to, (int)size, file))
		test_skip("%s tells no network device", path);
	fclose(file);
	to[strcspn(to, "\n")] = 0;
}

/* --- registrations --- */

static void registers_often(struct node *n)
{
	struct mem host, dma;
	node_open(n);
	mem_new(n, &host, &memkinds[KIND_MALLOC], 8192);
	mem_new(n, &dma, &memkinds[KIND_UDMABUF], 65536);
	struct rlimit files = {64, 64};
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &files), 0);
	int before = test_count_fds();
	int rounds = test_count(100000, 5000);
	for (int i = 0; i < rounds; i++) {
		struct mem *m = i % 2 ? &dma : &host;
		mem_register(n, m, 0, m->len, ANY_ACCESS, 0);
		mem_unregister(m);
	}
	CHECK_EQ(test_count_fds(), before);
	mem_end(n, &dma);
	mem_end(n, &host);
	node_close(n);
}

static void stands_by(struct node *n)
{
	(void)n;
}

TEST(registrations_keep_no_descriptor)
{
	only_here();
	pair(NULL, stands_by, registers_often, NULL);
}

static void registers_too_much(struct node *n)
{
	struct mem m;
	node_open(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 1 << 20);
	struct rlimit little = {65536, 65536};
	CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &little), 0);
	/* A privileged process has no limit on locked memory. */
	if (geteuid() == 0 && setresuid(65534, 65534, 65534) != 0)
		test_skip("root cannot become another user: %s", strerror(errno));
	CHECK_EQ(mem_try_register(n, &m, 0, m.len, ANY_ACCESS, 0, 0), -ENOMEM);
	const char *words = gdrfab_last_error();
	if (!strstr(words, "RLIMIT_MEMLOCK") || !strstr(words, "65536"))
		test_fail(__FILE__, __LINE__, "the words name no limit: %s", words);
	mem_register(n, &m, 0, 4096, ANY_ACCESS, 0);
	mem_unregister(&m);
	mem_end(n, &m);
	node_close(n);
}

TEST(a_limit_on_locked_memory_is_named)
{
	only_here();
	pair(NULL, stands_by, registers_too_much, NULL);
}

/* --- a dma-buf that the device refuses --- */

static void explains(struct node *n)
{
	struct mem m;
	char words[4096];
	node_open(n);
	mem_new(n, &m, &memkinds[KIND_UDMABUF], 65536);
	int refused = mem_try_register(n, &m, 0, m.len, ANY_ACCESS, GDRFAB_PATH_DMABUF, 0);
	if (refused == 0) {
		mem_unregister(&m);
		mem_end(n, &m);
		node_close(n);
		test_skip("this device takes dma-bufs");
	}
	CHECK_EQ(refused, -EOPNOTSUPP);
	CHECK(strstr(gdrfab_last_error(), "dma-buf: refused, errno 95"));
	mem_register(n, &m, 0, m.len, ANY_ACCESS, 0);
	gdrfab_mr_info info;
	memset(&info, 0, sizeof info);
	info.struct_size = sizeof info;
	OK(gdrfab_mr_query(m.mr, &info));
	CHECK_EQ(info.path, GDRFAB_PATH_STAGED);
	CHECK(gdrfab_mr_explain(m.mr, words, sizeof words) > 0);
	/* The explanation has every step in order, with its errno: EOPNOTSUPP, EFAULT. */
	const char *first = strstr(words, "dmabuf: dma-buf: refused, errno 95");
	const char *second = strstr(words, "pinned (ibv_reg_mr): refused, errno 14");
	const char *third = strstr(words, "staged through buffers of the library: taken");
	if (!first || !second || !third || first > second || second > third)
		test_fail(__FILE__, __LINE__, "the chain is not told: %s", words);
	mem_unregister(&m);
	mem_end(n, &m);
	node_close(n);
}

TEST(a_refused_dmabuf_is_staged_and_the_chain_told)
{
	only_here();
	pair(NULL, stands_by, explains, NULL);
}

/* --- no receive --- */

static void never_receives(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	node_accept(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	barrier(n);
	node_close(n);
}

static void sends_in_vain(struct node *n)
{
	char byte = 'x';
	struct failure f;
	uint32_t retries = 1;
	node_open(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_RNR_RETRY, &retries, sizeof retries));
	barrier(n);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	skip_unless(waits_for_receive(n), "messages without a receive are not held back");
	POST(n->cq, gdrfab_send(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, &byte));
	FAILED(n->cq, &byte, GDRFAB_ENORX, GDRFAB_PROV_VERBS + 13, &f);
	CHECK(strstr(f.words, "receive"));
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	CHECK_EQ(gdrfab_send(n->ep, &byte, 1, local_desc(n, &byte, 1), 0, &byte), -ESHUTDOWN);
	barrier(n);
	local_forget_all(n);
	node_close(n);
}

TEST(a_missing_receive_fails_the_send_where_patience_ends)
{
	only_here();
	pair(NULL, never_receives, sends_in_vain, NULL);
}

/* --- links and devices --- */

static void may_break(void)
{
	only_here();
	const char *may = getenv("TEST_BREAK");
	if (!may || strcmp(may, "1") != 0)
		test_skip("TEST_BREAK=1 lets this claim take links and devices away");
}

/* Waits for an error event of the endpoint. */
static int await_eq_failure(struct node *n, int ms)
{
	uint64_t until = test_now_ms() + (uint64_t)test_ms(ms);
	gdrfab_eq_cm_entry entry;
	uint32_t event;
	while (test_now_ms() < until) {
		ssize_t got = gdrfab_eq_read(n->eq, &event, &entry, sizeof entry, 0);
		if (got == -GDRFAB_EAVAIL) {
			gdrfab_eq_err_entry e;
			memset(&e, 0, sizeof e);
			e.struct_size = sizeof e;
			CHECK(gdrfab_eq_readerr(n->eq, &e, 0) > 0);
			return e.err;
		}
		gdrfab_cq_read(n->cq, NULL, 0);
	}
	return 0;
}

static void keeps_still(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], 65536);
	mem_register(n, &m, 0, m.len, ANY_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	barrier(n);
	mem_unregister(&m);
	mem_end(n, &m);
	node_close(n);
}

static void loses_its_link(struct node *n)
{
	char netdev[64];
	struct failure f;
	node_up(n);
	netdev_of(n, netdev, sizeof netdev);
	char *bytes = (char *)malloc(65536);
	struct remote to = mem_fetch(n);
	barrier(n);
	CHECK_EQ(test_system("ip link set dev %s down", netdev), 0);
	int told = await_eq_failure(n, 5000);
	/* soft-RoCE needs no link between two queue pairs of one device: the claim is that nothing is lost and no call hangs. */
	POST(n->cq, gdrfab_write(n->ep, bytes, 65536, local_desc(n, bytes, 65536), 0, to.base, to.key, bytes));
	done entry;
	int r = cq_next(n->cq, &entry, 20000);
	CHECK_EQ(test_system("ip link set dev %s up", netdev), 0);
	test_sleep_ms(300);
	if (told != ENETDOWN)
		test_fail(__FILE__, __LINE__, "the event that tells of the link has errno %d", told);
	CHECK(r != 0);
	if (r < 0)
		cq_failure(__FILE__, __LINE__, n->cq, &f);
	barrier(n);
	local_forget_all(n);
	free(bytes);
	node_close(n);
}

TEST(a_link_that_goes_down_is_told)
{
	may_break();
	pair(NULL, keeps_still, loses_its_link, NULL);
}

static void loses_its_device(struct node *n)
{
	char device[64];
	struct failure f;
	node_up(n);
	device_of(n, device, sizeof device);
	char *bytes = (char *)malloc(4096);
	void *desc = local_desc(n, bytes, 4096);
	POST(n->cq, gdrfab_recv(n->ep, bytes, 4096, desc, 0, bytes));
	barrier(n);
	/* The kernel waits until no process has the device open. */
	CHECK_EQ(test_system("rdma link delete %s &", device), 0);
	FAILED(n->cq, bytes, ECANCELED, GDRFAB_PROV_PEER_GONE, &f);
	CHECK(strstr(f.words, "removed"));
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	local_forget_all(n);
	free(bytes);
	node_close(n);
	barrier(n);
}

static void loses_it_too(struct node *n)
{
	node_up(n);
	barrier(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	node_close(n);
	barrier(n);
}

TEST(a_device_that_is_removed_is_told)
{
	may_break();
	const char *node = getenv("TEST_NODE");
	if (node && strcmp(node, "10.88.0.1") == 0)
		test_skip("the device is not soft-RoCE, and this claim could not make it again");
	char device[64] = "", netdev[64] = "";
	FILE *list = popen("for d in /sys/class/infiniband/*; do n=$(cat $d/ports/1/gid_attrs/ndevs/0);"
			   " ip -o addr show dev $n | grep -q \" $TEST_NODE/\" && echo ${d##*/} $n; done",
			   "r");
	if (!list || fscanf(list, "%63s %63s", device, netdev) != 2)
		test_skip("no device is found to have the address TEST_NODE");
	pclose(list);
	pair(NULL, loses_it_too, loses_its_device, NULL);
	/* The device is removed when the last process that had it open has ended. */
	int made = -1;
	for (int i = 0; i < 200 && made != 0; i++) {
		made = test_system("rdma link add %s type rxe netdev %s 2>/dev/null", device, netdev);
		test_sleep_ms(50);
	}
	CHECK_EQ(made, 0);
	test_sleep_ms(500);
}
