/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Descriptors of the process: the library never uses one of the first three, even if these are closed. If it lacks a
 * descriptor, it reports so and tries again later.
 */
#include "fab.h"

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

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
	CHECK_EQ(gdrfab_ep_query(n->ep, 0, to.key, &path), 0);
	CHECK(path.path != GDRFAB_PATH_DIRECT);
	CHECK_EQ(path.reasons[PATH_DIRECT], EMFILE);
	CHECK(gdrfab_ep_explain(n->ep, 0, to.key, words, sizeof words) > 0);
	CHECK(strstr(words, strerror(EMFILE)));
	CHECK(!strstr(words, strerror(ENOENT)));
	CHECK(setrlimit(RLIMIT_NOFILE, &before) == 0);
	for (uint64_t until = test_now_ms() + (uint64_t)test_ms(10000); path.path != GDRFAB_PATH_DIRECT;) {
		CHECK(test_now_ms() < until);
		write_once(n, to);
		QUIET(n->cq, 20);
		CHECK_EQ(gdrfab_ep_query(n->ep, 0, to.key, &path), 0);
	}
	barrier(n);
	node_down(n);
}

TEST(a_memory_file_that_finds_no_descriptor_is_tried_again)
{
	skip_unless(path_known(PATH_DIRECT), "this is about memory files of a peer");
	skip_unless(!test_checked(), "valgrind keeps the limit on descriptors itself, and applies it only to the calls that it knows");
	pair(NULL, owns_memory, lacks_a_descriptor, NULL);
}

/* The same where the peer has to send it. */
TEST(nor_is_one_that_the_peer_sends_lost)
{
	static const struct setup setup = {.env = {[TEST_CLIENT] = {"GDRFAB_DEBUG=no-pidfd"}}};
	skip_unless(path_known(PATH_DIRECT), "this is about memory files of a peer");
	skip_unless(!test_checked(), "valgrind keeps the limit on descriptors itself, and applies it only to the calls that it knows");
	pair(&setup, owns_memory, lacks_a_descriptor, NULL);
}

/* ---- the first three are closed */

/* None of the three is open, and what is printed goes nowhere. */
static void prints(struct node *n)
{
	(void)n;
	for (int fd = 0; fd < 3; fd++) {
		struct stat st;
		if (fstat(fd, &st) == 0)
			test_fail(__FILE__, __LINE__, "descriptor %d is open, with mode %o", fd, st.st_mode);
	}
	CHECK(write(1, "a line\n", 7) < 0 && write(2, "a line\n", 7) < 0);
}

static void without_the_first_three(struct node *n)
{
	struct mem m;
	static char in[70000], out[70000];
	done e;

	for (int fd = 0; fd < 3; fd++)
		n->fds -= close(fd) == 0;
	OK(gdrfab_log_set(4, NULL, NULL));
	node_up(n);
	prints(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], sizeof out);
	mem_register(n, &m, 0, sizeof out, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	struct remote to = mem_fetch(n);
	for (size_t len = 8; len <= sizeof out; len *= 20) {
		fill(out, len, 0, (uint32_t)len);
		POST(n->cq, gdrfab_write(n->ep, out, len, local_desc(n, out, sizeof out), PEER, to.base, to.key, out));
		DONE(n->cq, out, GDRFAB_WRITE, NULL);
		prints(n);
		POST(n->cq, gdrfab_recv(n->ep, in, len, local_desc(n, in, sizeof in), 0, in));
		meet_if_hasty(n);
		POST(n->cq, gdrfab_send(n->ep, out, len, local_desc(n, out, sizeof out), PEER, out));
		for (int left = 2; left > 0; left--)
			CHECK_EQ(cq_next(n->cq, &e, 10000), 1);
		CHECK_FILLED("a message", in, len, 0, (uint32_t)len);
		CHECK_EQ(gdrfab_cq_sread(n->cq, &e, 1, 3), -EAGAIN);
		prints(n);
		barrier(n);
	}
	mem_end(n, &m);
	OK(gdrfab_log_set(0, NULL, NULL));
	node_down(n);
	prints(n);
}

TEST(no_descriptor_of_the_library_is_a_standard_one)
{
	pair(NULL, without_the_first_three, without_the_first_three, NULL);
}

TEST(nor_where_a_thread_drives_and_the_queue_has_one)
{
	static const struct setup setup = {.progress = GDRFAB_PROGRESS_AUTO, .threading = GDRFAB_THREAD_SAFE, .cq_wait = GDRFAB_WAIT_FD};
	pair(&setup, without_the_first_three, without_the_first_three, NULL);
}

TEST(nor_of_a_connectionless_endpoint)
{
	static const struct setup setup = {.rdm = true};
	pair(&setup, without_the_first_three, without_the_first_three, NULL);
}
