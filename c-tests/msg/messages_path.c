/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The path of messages, for programs that have no region and so no key: as a struct and as text, for short and long messages,
 * for memory that the peer can map and other memory, and for one peer of a connectionless endpoint.
 */
#include "fab_rdm.h"
#include "fab.h"
#include "misuse.h"

#define SIZE 4096

static void says_path(const char *words, uint64_t path)
{
	for (int i = 0; i < PATHS; i++)
		if (paths[i].bit == path && !test_says(words, paths[i].name))
			test_wrong(__FILE__, __LINE__, "the words do not name %s: %s", paths[i].name, words);
}

/* Queries the path for memory with this descriptor, and checks the part that is the same for all providers. */
static gdrfab_path_info ask(struct node *n, const void *desc)
{
	gdrfab_path_info info = {.struct_size = sizeof info, .desc = desc};
	char words[4096];
	OK(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &info));
	ssize_t len = gdrfab_ep_explain(n->ep, 0, GDRFAB_KEY_MESSAGES, words, sizeof words);
	CHECK(len > 0 && (size_t)len < sizeof words);
	CHECK(test_says(words, "messages") && !test_says(words, "region 0x0"));
	CHECK(info.path && (info.path & info.paths) == info.path && info.desc == desc);
	CHECK((info.short_path != 0) == (info.short_size != 0));
	if (!desc)
		says_path(words, info.path), says_path(words, info.short_path);
	return info;
}

static void sends_both_ways(struct node *n, void *buf, void *desc, size_t len)
{
	meet_if_hasty(n);
	if (n->side == TEST_CLIENT) {
		POST(n->cq, gdrfab_send(n->ep, buf, len, desc, PEER, buf));
		DONE(n->cq, buf, GDRFAB_SEND, NULL);
	} else {
		POST(n->cq, gdrfab_recv(n->ep, buf, len, desc, PEER, buf));
		DONE(n->cq, buf, GDRFAB_RECV, NULL);
	}
}

static void asks(struct node *n)
{
	static char bytes[1 << 16];
	struct mem m;
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], sizeof bytes);
	mem_register(n, &m, 0, sizeof bytes, ANY_ACCESS, 0);
	gdrfab_path_info info = ask(n, NULL), mapped = ask(n, mem_desc(&m));
	bool shm = path_known(PATH_DIRECT);
	if (shm) {
		CHECK_EQ(info.short_path, GDRFAB_PATH_STAGED);
		CHECK(info.short_size >= SIZE && info.reasons[PATH_DIRECT] == EOPNOTSUPP && info.reasons[PATH_STAGED] == 0);
		CHECK_EQ(info.reasons[PATH_NIC], EOPNOTSUPP);
		/* Memory that peers can map takes another path. */
		CHECK_EQ(mapped.path, GDRFAB_PATH_DIRECT);
		CHECK(mapped.short_size <= info.short_size);
		uint64_t no = GDRFAB_PATH_CMA;
		OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_FORBID_PATH, &no, sizeof no));
		info = ask(n, NULL);
		CHECK(info.path == GDRFAB_PATH_STAGED && info.reasons[PATH_CMA] == EACCES);
	} else if (path_known(PATH_SOCKET)) {
		CHECK_EQ(info.path, GDRFAB_PATH_SOCKET);
		CHECK(info.reasons[PATH_STAGED] && info.reasons[PATH_DIRECT] && !info.reasons[PATH_SOCKET]);
	} else {
		CHECK_EQ(info.path, GDRFAB_PATH_NIC);
	}
	sends_both_ways(n, bytes, local_desc(n, bytes, sizeof bytes), 64);
	sends_both_ways(n, bytes, local_desc(n, bytes, sizeof bytes), sizeof bytes);
	/* An invalid descriptor. */
	info.desc = &info;
	CHECK(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &info) == -EINVAL || path_known(PATH_SOCKET));
	mem_end(n, &m);
	barrier(n);
	node_close(n);
}

TEST(the_way_of_messages_is_told_without_a_key)
{
	skip_if_connectionless();
	pair(NULL, asks, asks, NULL);
}

static void before_and_after(struct node *n)
{
	char words[4096];
	gdrfab_path_info info = {.struct_size = sizeof info};
	node_open(n);
	if (n->side == TEST_SERVER)
		node_domain(n, n->info);
	n->ep = ep_new(n, n->info, n);
	CHECK_EQ(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &info), -ENOTCONN);
	CHECK_EQ(gdrfab_ep_explain(n->ep, 0, GDRFAB_KEY_MESSAGES, words, sizeof words), -ENOTCONN);
	node_close(n);
}

TEST(before_there_is_a_connection_no_way_is_told)
{
	struct node n;
	skip_if_connectionless();
	node_alone(&n, NULL);
	node_close(&n);
	pair(NULL, before_and_after, before_and_after, NULL);
}

/* Before 0.2 the struct was shorter, and had other fields. */
static void asks_with_less(struct node *n)
{
	gdrfab_path_info less;
	node_up(n);
	memset(&less, 0x5a, sizeof less);
	less.struct_size = 88;
	MISUSE(gdrfab_ep_query(n->ep, 0, GDRFAB_KEY_MESSAGES, &less), -EINVAL, "struct_size");
	CHECK(less.path == 0x5a5a5a5a5a5a5a5a);
	barrier(n);
	node_close(n);
}

TEST(a_struct_of_before_is_refused)
{
	skip_if_connectionless();
	pair(NULL, asks_with_less, asks_with_less, NULL);
}

/* --- connectionless --- */

static void asks_of_peers(struct self *s)
{
	static char bytes[64];
	char words[4096];
	uint64_t other = 1 - (uint64_t)s->rank;
	gdrfab_path_info info = {.struct_size = sizeof info}, own = info;
	meet(s);
	trecv(s, other, bytes, sizeof bytes, 1, 0, 1);
	if (s->connected)
		CHECK_EQ(gdrfab_ep_query(s->ep, 0, GDRFAB_KEY_MESSAGES, &info), 0);
	tsend(s, (int)other, "x", 1, 1, 2);
	await(s, 1, NULL);
	await(s, 2, NULL);
	OK(gdrfab_ep_query(s->ep, other, GDRFAB_KEY_MESSAGES, &info));
	ssize_t len = gdrfab_ep_explain(s->ep, other, GDRFAB_KEY_MESSAGES, words, sizeof words);
	CHECK(len > 0 && test_says(words, "messages to"));
	CHECK(info.path && info.short_path && info.short_size >= 1024);
	says_path(words, info.path), says_path(words, info.short_path);
	if (!s->connected) {
		CHECK(test_says(words, "over "));
		OK(gdrfab_ep_query(s->ep, (uint64_t)s->rank, GDRFAB_KEY_MESSAGES, &own));
		CHECK_EQ(own.path, GDRFAB_PATH_DIRECT);
		CHECK_EQ(gdrfab_ep_query(s->ep, 77, GDRFAB_KEY_MESSAGES, &own), -EINVAL);
	}
	meet(s);
}

TEST_TABLE(claims)
{
	static const struct rdm_claim all[] = {{"the_way_to_each_peer_is_told", asks_of_peers, 2, false}};
	rdm_add_both(all, 1);
}
