/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Address vectors: indexes are the same in every process, bad names are refused, and connected endpoints without tags
 * refuse tagged calls. Connectionless endpoints themselves are tested in rdm/rdm.c.
 */
#include "misuse.h"

#define NAME GDRFAB_NAME_LEN

static gdrfab_av *av_new(struct node *n)
{
	gdrfab_av *av = NULL;
	OK(gdrfab_av_open(n->domain, NULL, n, &av));
	CHECK(av != NULL && gdrfab_av_context(av) == n);
	return av;
}

/* Makes a valid endpoint name from its text form. */
static void name_of(gdrfab_av *av, const char *text, unsigned char *name)
{
	uint64_t at = 0;
	size_t len = NAME;
	CHECK_EQ(gdrfab_av_insertsvc(av, NULL, text, &at, 0, NULL), 1);
	OK(gdrfab_av_lookup(av, at, name, &len));
	CHECK_EQ(len, NAME);
	OK(gdrfab_av_remove(av, &at, 1, 0));
}

static void name_number(gdrfab_av *av, unsigned number, unsigned char *name)
{
	char text[96];
	snprintf(text, sizeof text, "rdm://10.%u.%u.%u:7000/%016x/00000000000000ff", number >> 16 & 255, number >> 8 & 255,
		 number & 255, number + 1);
	name_of(av, text, name);
}

TEST(opening_and_closing)
{
	struct node n;
	node_alone(&n, NULL);
	gdrfab_av *av = MARKER(gdrfab_av), *good;
	gdrfab_av_attr attr = {sizeof attr, 1000, 0};
	MISUSE(gdrfab_av_open(NULL, NULL, NULL, &av), -EINVAL, "domain");
	MISUSE(gdrfab_av_open(n.domain, NULL, NULL, NULL), -EINVAL, "av");
	attr.flags = 1;
	BAD_FLAGS(gdrfab_av_open(n.domain, &attr, NULL, &av));
	attr.flags = 0, attr.struct_size = 0;
	MISUSE(gdrfab_av_open(n.domain, &attr, NULL, &av), -EINVAL, "struct_size");
	CHECK(av == MARKER(gdrfab_av));
	attr.struct_size = sizeof attr;
	OK(gdrfab_av_open(n.domain, &attr, &attr, &good));
	CHECK(gdrfab_av_context(good) == &attr);
	CHECK_EQ(gdrfab_domain_close(n.domain), -EBUSY);
	OK(gdrfab_av_close(good));
	MISUSE(gdrfab_av_close(NULL), -EINVAL, "av");
	CHECK(gdrfab_av_context(NULL) == NULL);

	/* A connected endpoint does not keep an address vector open. */
	good = av_new(&n);
	gdrfab_ep *ep = NULL;
	OK(gdrfab_ep_open(n.domain, n.info, NULL, &ep));
	MISUSE(gdrfab_ep_bind_av(NULL, good, 0), -EINVAL, "ep");
	MISUSE(gdrfab_ep_bind_av(ep, NULL, 0), -EINVAL, "av");
	BAD_FLAGS(gdrfab_ep_bind_av(ep, good, 1));
	MISUSE(gdrfab_ep_bind_av(ep, good, 0), -EINVAL, "ep");
	SAYS(gdrfab_last_error(), "GDRFAB_EP_RDM");
	OK(gdrfab_av_close(good));
	OK(gdrfab_ep_close(ep));
	node_close(&n);
}

TEST(indexes_follow_the_order_of_insertion)
{
	enum { COUNT = 500 };
	struct node n;
	static unsigned char names[COUNT][NAME];
	uint64_t one[COUNT], other[COUNT];
	node_alone(&n, NULL);
	gdrfab_av *a = av_new(&n), *b = av_new(&n), *scratch = av_new(&n);
	for (unsigned i = 0; i < COUNT; i++)
		name_number(scratch, i, names[i]);
	/* Inserted all at once, and one by one. */
	CHECK_EQ(gdrfab_av_insert(a, names, COUNT, one, 0, NULL), COUNT);
	for (int i = 0; i < COUNT; i++)
		CHECK_EQ(gdrfab_av_insert(b, names[i], 1, &other[i], i % 2 ? GDRFAB_MORE : 0, NULL), 1);
	for (int i = 0; i < COUNT; i++) {
		CHECK_EQ(one[i], i);
		CHECK_EQ(other[i], i);
	}
	/* The index that was removed last is given out next. */
	uint64_t out[] = {3, 400, 77}, got[4];
	OK(gdrfab_av_remove(a, out, 3, 0));
	OK(gdrfab_av_remove(b, out, 2, 0));
	OK(gdrfab_av_remove(b, out + 2, 1, 0));
	unsigned char back[NAME];
	size_t len = sizeof back;
	MISUSE(gdrfab_av_lookup(a, 77, back, &len), -EINVAL, "fi_addr");
	MISUSE(gdrfab_av_remove(a, out, 1, 0), -EINVAL, "fi_addr");
	CHECK_EQ(gdrfab_av_insert(a, names, 4, got, 0, NULL), 4);
	CHECK(got[0] == 77 && got[1] == 400 && got[2] == 3 && got[3] == COUNT);
	CHECK_EQ(gdrfab_av_insert(b, names, 4, NULL, 0, NULL), 4);
	for (uint64_t i = 0; i <= COUNT; i++) {
		unsigned char back_b[NAME];
		size_t len_b = sizeof back_b;
		len = sizeof back;
		OK(gdrfab_av_lookup(a, i, back, &len));
		OK(gdrfab_av_lookup(b, i, back_b, &len_b));
		CHECK(memcmp(back, back_b, NAME) == 0);
	}
	CHECK_EQ(gdrfab_av_insert(a, NULL, 0, NULL, 0, NULL), 0);
	OK(gdrfab_av_remove(a, NULL, 0, 0));
	MISUSE(gdrfab_av_insert(NULL, names, 1, got, 0, NULL), -EINVAL, "av");
	MISUSE(gdrfab_av_insert(a, NULL, 1, got, 0, NULL), -EINVAL, "addr");
	MISUSE(gdrfab_av_insert(a, names, SIZE_MAX / 2, got, 0, NULL), -EINVAL, "");
	BAD_FLAGS(gdrfab_av_insert(a, names, 1, got, 1, NULL));
	MISUSE(gdrfab_av_remove(a, NULL, 1, 0), -EINVAL, "fi_addr");
	MISUSE(gdrfab_av_remove(NULL, got, 1, 0), -EINVAL, "av");
	BAD_FLAGS(gdrfab_av_remove(a, got, 1, 1));
	uint64_t none[] = {COUNT + 1, GDRFAB_ADDR_UNSPEC, 1ull << 32};
	for (int i = 0; i < 3; i++) {
		MISUSE(gdrfab_av_remove(a, &none[i], 1, 0), -EINVAL, "fi_addr");
		MISUSE(gdrfab_av_lookup(a, none[i], back, &len), -EINVAL, "fi_addr");
	}
	OK(gdrfab_av_close(a));
	OK(gdrfab_av_close(b));
	OK(gdrfab_av_close(scratch));
	node_close(&n);
}

TEST(lookup_into_every_length)
{
	struct node n;
	unsigned char name[NAME], out[NAME + 32];
	uint64_t at;
	node_alone(&n, NULL);
	gdrfab_av *av = av_new(&n);
	name_number(av, 5, name);
	CHECK_EQ(gdrfab_av_insert(av, name, 1, &at, 0, NULL), 1);
	for (size_t room = 0; room <= sizeof out; room++) {
		size_t len = room;
		memset(out, 0xaa, sizeof out);
		int rc = gdrfab_av_lookup(av, at, room ? out : NULL, &len);
		CHECK_EQ(rc, room < NAME ? -GDRFAB_ETOOSMALL : 0);
		CHECK_EQ(len, NAME);
		if (rc == 0)
			CHECK(memcmp(out, name, NAME) == 0);
		for (size_t i = rc ? 0 : NAME; i < sizeof out; i++)
			CHECK_EQ(out[i], 0xaa);
	}
	size_t len = NAME;
	MISUSE(gdrfab_av_lookup(av, at, NULL, &len), -EINVAL, "addr");
	MISUSE(gdrfab_av_lookup(av, at, out, NULL), -EINVAL, "addrlen");
	MISUSE(gdrfab_av_lookup(NULL, at, out, &len), -EINVAL, "av");
	OK(gdrfab_av_close(av));
	node_close(&n);
}

static void refused(gdrfab_av *av, const unsigned char *name, const char *word)
{
	uint64_t at = 1;
	char text[GDRFAB_ADDR_MAX];
	CHECK_EQ(gdrfab_av_insert(av, name, 1, &at, 0, NULL), 0);
	CHECK_EQ(at, GDRFAB_ADDR_NOTAVAIL);
	SAYS(gdrfab_last_error(), "addr[0]");
	SAYS(gdrfab_last_error(), word);
	CHECK_EQ(gdrfab_av_straddr(av, name, text, sizeof text), -EINVAL);
	SAYS(gdrfab_last_error(), word);
}

TEST(what_is_no_name_is_refused)
{
	struct node n;
	unsigned char good[NAME], bad[3][NAME], other[2 * NAME];
	uint64_t at[3], seed = 1;
	char text[GDRFAB_ADDR_MAX];
	node_alone(&n, NULL);
	gdrfab_av *av = av_new(&n);
	name_number(av, 7, good);
	/* Names cut off at every length, with other bytes behind. */
	for (size_t len = 0; len < 24; len++) {
		memset(bad[0], 0, NAME);
		memcpy(bad[0], good, len);
		if (memcmp(bad[0], good, 24) != 0)
			CHECK(gdrfab_av_insert(av, bad[0], 1, at, 0, NULL) == 0 || len > 8);
	}
	for (size_t len = 0; len < NAME; len++) {
		memset(bad[0], 0xff, NAME);
		memcpy(bad[0], good, len);
		refused(av, bad[0], "addr");
	}
	/* Bytes that begin at another offset; another version; text. */
	memcpy(other, good, NAME);
	memcpy(other + NAME, good, NAME);
	for (size_t skip = 1; skip < NAME; skip++)
		refused(av, other + skip, "name");
	memcpy(bad[0], good, NAME);
	bad[0][3]++;
	refused(av, bad[0], "version");
	memset(bad[0], 0, NAME);
	refused(av, bad[0], "name");
	strcpy((char *)bad[0], "tcp://127.0.0.1:7000");
	refused(av, bad[0], "name");
	for (int i = 0; i < 10000; i++) {
		for (size_t k = 0; k < NAME; k++)
			bad[0][k] = (unsigned char)test_random(&seed);
		refused(av, bad[0], "name");
		memcpy(bad[0], good, 4);
		ssize_t got = gdrfab_av_insert(av, bad[0], 1, at, 0, NULL);
		CHECK_EITHER(got, 0, 1);
	}
	OK(gdrfab_av_close(av));

	/* Invalid names take no index. */
	av = av_new(&n);
	memcpy(bad[0], good, NAME);
	memset(bad[1], 0, NAME);
	memcpy(bad[2], good, NAME);
	CHECK_EQ(gdrfab_av_insert(av, bad, 3, at, 0, NULL), 2);
	CHECK(at[0] == 0 && at[1] == GDRFAB_ADDR_NOTAVAIL && at[2] == 1);
	SAYS(gdrfab_last_error(), "addr[1]");
	ssize_t whole = gdrfab_av_straddr(av, good, NULL, 0);
	CHECK(whole > 0);
	for (size_t room = 1; room <= sizeof text; room++) {
		memset(text, 'x', sizeof text);
		CHECK_EQ(gdrfab_av_straddr(av, good, text, room), whole);
		CHECK_EQ(strlen(text), room <= (size_t)whole ? room - 1 : (size_t)whole);
	}
	MISUSE(gdrfab_av_straddr(av, NULL, text, sizeof text), -EINVAL, "addr");
	MISUSE(gdrfab_av_straddr(NULL, good, text, sizeof text), -EINVAL, "av");
	OK(gdrfab_av_close(av));
	node_close(&n);
}

TEST(node_and_service)
{
	static const struct {
		const char *node, *service, *text;
		int err;
		const char *word;
	} cases[] = {
		{"192.0.2.1", "7000", "rdm://192.0.2.1:7000", 0, NULL},
		{NULL, "7000", "rdm://127.0.0.1:7000", 0, NULL},
		{"::1", "1", "rdm://[::1]:1", 0, NULL},
		{"[2001:db8::1]", "65535", "rdm://[2001:db8::1]:65535", 0, NULL},
		{NULL, "rdm://192.0.2.1:5", "rdm://192.0.2.1:5", 0, NULL},
		{NULL, "rdm://192.0.2.1:5/0123456789abcdef/fedcba9876543210",
		 "rdm://192.0.2.1:5/0123456789abcdef/fedcba9876543210", 0, NULL},
		{"192.0.2.1", "0", NULL, -EINVAL, "service"},
		{"192.0.2.1", "65536", NULL, -EINVAL, "service"},
		{"192.0.2.1", "+5", NULL, -EINVAL, "service"},
		{"192.0.2.1", "", NULL, -EINVAL, "service"},
		{"192.0.2.1", "7000 ", NULL, -EINVAL, "service"},
		{"192.0.2.1", NULL, NULL, -EINVAL, "service"},
		{"192.0.2.1", "rdm://192.0.2.1:5", NULL, -EINVAL, "node"},
		{NULL, "tcp://192.0.2.1:5", NULL, -EINVAL, "service"},
		{NULL, "rdm://192.0.2.1:5/12/34", NULL, -EINVAL, "addr"},
		{"0.0.0.0", "7000", NULL, -EINVAL, "0.0.0.0"},
		{"255.255.255.255", "7000", NULL, -EINVAL, "255"},
		{"224.0.0.1", "7000", NULL, -EINVAL, "224"},
	};
	struct node n;
	node_alone(&n, NULL);
	gdrfab_av *av = av_new(&n);
	uint64_t next = 0;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		uint64_t at = 12345;
		ssize_t rc = gdrfab_av_insertsvc(av, cases[i].node, cases[i].service, &at, 0, NULL);
		WANT_EQ(rc, cases[i].err ? cases[i].err : 1);
		if (cases[i].err) {
			CHECK_EQ(at, 12345);
			SAYS(gdrfab_last_error(), cases[i].word);
			continue;
		}
		unsigned char name[NAME];
		char text[GDRFAB_ADDR_MAX];
		size_t len = sizeof name;
		CHECK_EQ(at, next++);
		OK(gdrfab_av_lookup(av, at, name, &len));
		CHECK_EQ(gdrfab_av_straddr(av, name, text, sizeof text), strlen(cases[i].text));
		if (strcmp(text, cases[i].text) != 0)
			test_wrong(__FILE__, __LINE__, "\"%s\", not \"%s\"", text, cases[i].text);
	}
	CHECK_EQ(gdrfab_av_insertsvc(av, "localhost", "7000", NULL, GDRFAB_MORE, NULL), 1);
	MISUSE(gdrfab_av_insertsvc(av, "no such host", "7000", NULL, 0, NULL), -EADDRNOTAVAIL, "node");
	MISUSE(gdrfab_av_insertsvc(NULL, NULL, "7000", NULL, 0, NULL), -EINVAL, "av");
	BAD_FLAGS(gdrfab_av_insertsvc(av, NULL, "7000", NULL, 1, NULL));
	OK(gdrfab_av_close(av));
	node_close(&n);
}

static size_t rss(void)
{
	unsigned long pages = 0, resident = 0;
	FILE *file = fopen("/proc/self/statm", "r");
	CHECK(file && fscanf(file, "%lu %lu", &pages, &resident) == 2);
	fclose(file);
	return resident * (size_t)sysconf(_SC_PAGESIZE);
}

TEST(a_peer_that_is_only_known_costs_64_bytes)
{
	enum { STEP = 1000 };
	unsigned count = (unsigned)test_count(100000, 5000);
	static unsigned char names[STEP][NAME];
	struct node n;
	node_alone(&n, NULL);
	gdrfab_av *av = av_new(&n);
	unsigned char name[NAME];
	name_number(av, 1, name);
	size_t before = rss();
	for (unsigned i = 0; i < count; i += STEP) {
		/* name_number() varies the bytes of the address. */
		for (unsigned k = 0; k < STEP; k++) {
			memcpy(names[k], name, NAME);
			names[k][21] = (unsigned char)((i + k) >> 16);
			names[k][22] = (unsigned char)((i + k) >> 8);
			names[k][23] = (unsigned char)(i + k);
		}
		CHECK_EQ(gdrfab_av_insert(av, names, STEP, NULL, 0, NULL), STEP);
	}
	size_t grown = rss() - before;
	/* Besides the names: a hash table of 1 MiB, and the allocator's rounding. */
	printf("     %u names: %zu KiB, %.1f bytes each\n", count, grown / 1024, (double)grown / count);
	if (!getenv("VALGRIND_LIB") && count == 100000)
		CHECK(grown <= (size_t)count * 64 + (1u << 20) + (256u << 10));
	uint64_t at = count - 1;
	size_t len = sizeof name;
	OK(gdrfab_av_lookup(av, at, name, &len));
	CHECK(memcmp(name, names[STEP - 1], NAME) == 0);
	OK(gdrfab_av_close(av));
	node_close(&n);
}

/* --- tagged calls on connected endpoints --- */

static void without_tags(struct node *n)
{
	char buf[16] = "x";
	struct iovec iov = {buf, sizeof buf};
	gdrfab_msg_tagged msg = {.struct_size = sizeof msg, .msg_iov = &iov, .iov_count = 1};
	gdrfab_msg one = {.struct_size = sizeof one, .msg_iov = &iov, .iov_count = 1};
	node_up(n);
	gdrfab_ep *ep = n->ep;
	MISUSE(gdrfab_tsend(ep, buf, 1, NULL, 0, 1, buf), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_tsendv(ep, &iov, NULL, 1, 0, 1, buf), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_tsendmsg(ep, &msg, 0), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_tsenddata(ep, buf, 1, NULL, 1, 0, 1, buf), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_tinject(ep, buf, 1, 0, 1), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_tinjectdata(ep, buf, 1, 1, 0, 1), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_trecv(ep, buf, 1, NULL, GDRFAB_ADDR_UNSPEC, 1, 0, buf), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_trecvv(ep, &iov, NULL, 1, GDRFAB_ADDR_UNSPEC, 1, 0, buf), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_trecvmsg(ep, &msg, GDRFAB_PEEK), -EOPNOTSUPP, "ep");
	MISUSE(gdrfab_recvmsg(ep, &one, GDRFAB_MULTI_RECV), -EOPNOTSUPP, "flags");
	MISUSE(gdrfab_trecvmsg(ep, &msg, GDRFAB_DISCARD), -GDRFAB_EBADFLAGS, "flags");
	MISUSE(gdrfab_trecvmsg(ep, &msg, GDRFAB_MULTI_RECV), -GDRFAB_EBADFLAGS, "flags");
	MISUSE(gdrfab_tsendmsg(ep, &msg, GDRFAB_PEEK), -GDRFAB_EBADFLAGS, "flags");
	MISUSE(gdrfab_tsendmsg(ep, NULL, 0), -EINVAL, "msg");
	MISUSE(gdrfab_trecvmsg(ep, NULL, 0), -EINVAL, "msg");
	msg.struct_size = 8;
	MISUSE(gdrfab_tsendmsg(ep, &msg, 0), -EINVAL, "msg");
	MISUSE(gdrfab_tsend(NULL, buf, 1, NULL, 0, 1, buf), -EINVAL, "ep");
	MISUSE(gdrfab_tinject(NULL, buf, 1, 0, 1), -EINVAL, "ep");
	MISUSE(gdrfab_trecv(NULL, buf, 1, NULL, 0, 1, 0, buf), -EINVAL, "ep");
	MISUSE(gdrfab_tsend(ep, NULL, 1, NULL, 0, 1, buf), -EINVAL, "buf");
	MISUSE(gdrfab_trecv(ep, NULL, 1, NULL, 0, 1, 0, buf), -EINVAL, "buf");
	MISUSE(gdrfab_tsenddata(ep, NULL, 1, NULL, 1, 0, 1, buf), -EINVAL, "buf");
	size_t least = 100, len = sizeof least;
	MISUSE(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, &least, len), -ENOPROTOOPT, "optname");
	MISUSE(gdrfab_ep_getopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_MIN_MULTI_RECV, &least, &len), -ENOPROTOOPT, "optname");
	QUIET(n->cq, 5);
	barrier(n);
	node_down(n);
}

static void stands_by(struct node *n)
{
	node_up(n);
	barrier(n);
	node_down(n);
}

TEST(connected_endpoints_have_no_tags)
{
	pair(NULL, stands_by, without_tags, NULL);
}
