/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Descriptors of the process: the library's are none of the first three, whatever of these is closed, and what it lacked
 * one for is told so and tried again.
 */
#include "fab.h"

#include <fcntl.h>
#include <sys/resource.h>

/* ---- none is left for a peer's memory file */

static void owns_memory(struct node *n)
{
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	mem_end(n, &m);
	node_down(n);
}

static void write_once(struct node *n, struct remote to)
{
	static uint64_t word = 7;
	POST(n->cq, gdrfab_write(n->ep, &word, 8, local_desc(n, &word, 8), PEER, to.base, to.key, &word));
	DONE(n->cq, &word, GDRFAB_WRITE, NULL);
}

static void lacks_a_descriptor(struct node *n)
{
	struct rlimit before, none;
	gdrfab_path_info path = {.struct_size = sizeof path};
	char words[2048];

	node_up(n);
	struct remote to = mem_fetch(n);
	int next = dup(0);
	close(next);
	CHECK(getrlimit(RLIMIT_NOFILE, &before) == 0);
	none = before;
	none.rlim_cur = (rlim_t)next;
	CHECK(setrlimit(RLIMIT_NOFILE, &none) == 0);
	write_once(n, to);
	CHECK_EQ(gdrfab_ep_query(n->ep, to.key, &path), 0);
	CHECK(path.path != GDRFAB_PATH_DIRECT);
	CHECK_EQ(path.direct_errno, EMFILE);
	CHECK(gdrfab_ep_explain(n->ep, to.key, words, sizeof words) > 0);
	CHECK(strstr(words, strerror(EMFILE)));
	CHECK(!strstr(words, strerror(ENOENT)));
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); path.path != GDRFAB_PATH_DIRECT;) {
		CHECK(test_now_ms() < until);
		write_once(n, to);
		QUIET(n->cq, 20);
		CHECK_EQ(gdrfab_ep_query(n->ep, to.key, &path), 0);
	}
	barrier(n);
	node_down(n);
}

TEST(a_memory_file_that_finds_no_descriptor_is_tried_again)
{
	skip_unless(path_known(PATH_DIRECT), "this is about memory files of a peer");
	pair(NULL, owns_memory, lacks_a_descriptor, NULL);
}

/* The same where the peer has to send it. */
TEST(nor_is_one_that_the_peer_sends_lost)
{
	static const struct setup setup = {.env = {[TEST_CLIENT] = {"GDRFAB_SHM_PIDFD=0"}}};
	skip_unless(path_known(PATH_DIRECT), "this is about memory files of a peer");
	pair(&setup, owns_memory, lacks_a_descriptor, NULL);
}
