/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A sealed connection needs one descriptor more than its socket. A server without descriptors refuses the client with that
 * reason, instead of accepting and then closing; an existing connection goes on without its further streams.
 */
#include "fab.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>

#define SECRET "a secret of this test 0123456789"

/* Limits the process to `spare` more descriptors than are open. */
static void use_up(int spare)
{
	struct rlimit limit;
	int fd = open("/dev/null", O_RDONLY | O_CLOEXEC);
	CHECK(fd >= 0);
	close(fd);
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = (rlim_t)(fd + spare);
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

static void give_back(void)
{
	struct rlimit limit;
	CHECK_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
	limit.rlim_cur = limit.rlim_max;
	CHECK_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* --- the first connection --- */

static void has_none(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	gdrfab_info *request = node_await_request(n);
	node_domain(n, request);
	n->ep = ep_new(n, request, NULL);
	use_up(0);
	CHECK_EQ(gdrfab_ep_accept(n->ep, NULL, 0), -EMFILE);
	SAYS(gdrfab_last_error(), "sealed");
	give_back();
	gdrfab_freeinfo(request);
	OK(gdrfab_ep_close(n->ep));
	barrier(n);
	node_accept(n);
	barrier(n);
	node_close(n);
}

static void is_told(struct node *n)
{
	struct eq_failure f;
	barrier(n);
	node_open(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EQ_FAILED(n->eq, n->ep, ECONNREFUSED, 10000, &f);
	SAYS(gdrfab_last_error(), "descriptor");
	OK(gdrfab_ep_close(n->ep));
	barrier(n);
	node_connect(n);
	barrier(n);
	node_close(n);
}

TEST(without_a_descriptor_nobody_is_accepted)
{
	struct setup s = {.key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = SECRET}};
	skip_unless(path_known(PATH_SOCKET), "this is about sockets that are sealed");
	pair(&s, has_none, is_told, NULL);
}

/* --- further streams --- */

enum { ENOUGH = 16 };
static unsigned char bytes[1 << 20];

/* The side that lacks descriptors: for all sockets, for some, or only for the seals of the sockets. */
struct few {
	enum test_side side;
	int spare;
	bool *all; /* all streams are connected; shared */
};

static void writes(struct node *n)
{
	node_up(n);
	struct remote to = mem_fetch(n);
	const struct few *few = (const struct few *)n->arg;
	if (few->side == TEST_CLIENT)
		use_up(few->spare);
	fill(bytes, sizeof bytes, 0, 1);
	/* The first transfer asks for the streams; more follow until they are connected or refused. */
	char text[2048] = "";
	for (uint64_t until = test_now_ms() + (uint64_t)(few->spare < ENOUGH ? 1000 : test_ms(8000)); test_now_ms() < until && !strstr(text, "of host memory use");) {
		POST(n->cq, gdrfab_write(n->ep, bytes, sizeof bytes, NULL, 0, to.base, to.key, bytes));
		DONE(n->cq, bytes, GDRFAB_WRITE, NULL);
		CHECK(gdrfab_ep_explain(n->ep, 0, to.key, text, sizeof text) > 0);
	}
	for (int i = 0; i < 3; i++) {
		POST(n->cq, gdrfab_write(n->ep, bytes, sizeof bytes, NULL, 0, to.base, to.key, bytes));
		DONE(n->cq, bytes, GDRFAB_WRITE, NULL);
	}
	*few->all = strstr(text, "of host memory use") != NULL;
	give_back();
	barrier(n);
	node_close(n);
}

static void serves(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MALLOC], sizeof bytes);
	mem_register(n, &m, 0, sizeof bytes, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	const struct few *few = (const struct few *)n->arg;
	if (few->side == TEST_SERVER)
		use_up(few->spare);
	barrier(n);
	give_back();
	CHECK_MEM("what was written", &m, 0, sizeof bytes, 0, 1);
	mem_end(n, &m);
	node_close(n);
}

static void goes_on(const void *arg)
{
	struct setup s = {.key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = SECRET}};
	skip_unless(path_known(PATH_SOCKET), "this is about sockets that are sealed");
	setenv("GDRFAB_TCP_STREAMS", "2", 1);
	bool *all = (bool *)mmap(NULL, sizeof *all, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	CHECK(all != MAP_FAILED);
	static const int spares[] = {1, 2, 3, 4, 5, ENOUGH};
	for (size_t i = 0; i < sizeof spares / sizeof *spares && !*all && !test_decided(); i++) {
		struct few few = {*(const enum test_side *)arg, spares[i], all};
		pair(&s, serves, writes, &few);
	}
	CHECK(*all || test_decided());
}

TEST_TABLE(streams)
{
	static const enum test_side sides[] = {TEST_SERVER, TEST_CLIENT};
	test_add("without_descriptors_here_the_first_stream_carries_everything", goes_on, &sides[0], 30);
	test_add("without_descriptors_there_the_first_stream_carries_everything", goes_on, &sides[1], 30);
}
