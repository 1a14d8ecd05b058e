/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * A shared key: by attribute or by file, a wrong key, a key on one side only, invalid proofs; and that no output of the library
 * ever contains the key.
 */
#include "fab.h"
#include "tcp_raw.h"

#include <fcntl.h>
#include <sys/socket.h>
#include <sys/stat.h>

#define SECRET "a secret of this test 0123456789"
#define OTHER "another secret of it, of 32 byte"

static void only_tcp(void)
{
	skip_unless(path_known(PATH_SOCKET), "this is about keys of sockets");
}

/* --- both sides have the same key --- */

static void says_hello(struct node *n)
{
	node_up(n);
	text_both_ways(n, "with a key");
	node_down(n);
}

TEST(the_same_key_on_both_sides)
{
	struct setup s = {.key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = SECRET}};
	only_tcp();
	pair(&s, says_hello, says_hello, NULL);
}

TEST(the_same_key_by_exchanged_addresses)
{
	struct setup s = {.by_address = true, .key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = SECRET}};
	only_tcp();
	pair(&s, says_hello, says_hello, NULL);
}

/* --- files --- */

static void write_key(char *path, size_t size, const void *key, size_t len, mode_t mode)
{
	const char *dir = getenv("TMPDIR");
	snprintf(path, size, "%s/gdrfab-c-tests-%d.key", dir && *dir ? dir : "/tmp", (int)getpid());
	unlink(path);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	CHECK(fd >= 0);
	CHECK_EQ(write(fd, key, len), (ssize_t)len);
	/* The mode must not depend on the umask. */
	CHECK_EQ(fchmod(fd, mode), 0);
	close(fd);
}

static void with_file(const char *text, const char *server, const char *client)
{
	struct setup s = {.key = {[TEST_SERVER] = server, [TEST_CLIENT] = client}};
	char path[256];
	only_tcp();
	write_key(path, sizeof path, text, strlen(text), 0600);
	setenv("GDRFAB_TCP_KEY_FILE", path, 1);
	pair(&s, says_hello, says_hello, NULL);
	unlink(path);
}

TEST(a_key_file)
{
	with_file(SECRET, NULL, NULL);
}

/* A file with a newline at its end, as editors write it. */
TEST(a_key_file_that_ends_with_a_newline)
{
	with_file(SECRET "\n", SECRET, NULL);
}

TEST(a_key_file_here_and_an_attribute_there)
{
	with_file(SECRET, NULL, SECRET);
}

/* An attribute overrides the file, on both sides. */
TEST(an_attribute_goes_before_the_file)
{
	with_file(OTHER, SECRET, SECRET);
}

/* Opens all objects until connecting; returns the first result that is not 0. */
static int opens_all(struct node *n)
{
	gdrfab_info *hints = hints_new(n->setup);
	int rc = provider_getinfo("18515", 0, hints, &n->info);
	gdrfab_freeinfo(hints);
	if (rc != 0 || (rc = gdrfab_fabric_open(n->info, NULL, &n->fabric)) != 0)
		return rc;
	OK(gdrfab_eq_open(n->fabric, NULL, NULL, &n->eq));
	if ((rc = gdrfab_domain_open(n->fabric, n->info, NULL, &n->domain)) != 0)
		return rc;
	n->cq = cq_new(n, GDRFAB_CQ_FORMAT_DATA, 0, 0);
	if ((rc = gdrfab_ep_open(n->domain, n->info, NULL, &n->ep)) != 0)
		return rc;
	OK(gdrfab_ep_bind_cq(n->ep, n->cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(n->ep, n->eq, 0));
	if ((rc = gdrfab_ep_enable(n->ep)) != 0)
		return rc;
	return gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0);
}

static void refuses_file(const void *key, size_t len, mode_t mode, const char *word)
{
	static const struct setup defaults;
	char path[256];
	struct node n;
	only_tcp();
	if (key)
		write_key(path, sizeof path, key, len, mode);
	else
		snprintf(path, sizeof path, "/nonexistent/gdrfab.key");
	setenv("GDRFAB_TCP_KEY_FILE", path, 1);
	memset(&n, 0, sizeof n);
	n.setup = &defaults;
	n.oob = -1;
	n.fds = test_count_fds();
	int rc = opens_all(&n);
	unlink(path);
	CHECK(rc < 0);
	const char *said = gdrfab_last_error();
	if (!test_says(said, word) || !(test_says(said, path) || test_says(said, "GDRFAB_TCP_KEY_FILE")))
		test_fail(__FILE__, __LINE__, "the words name not both the file and \"%s\": %s", word, said);
	if (key)
		CHECK(!test_says(said, SECRET));
	node_close(&n);
}

TEST(a_key_file_that_others_can_read_is_refused)
{
	refuses_file(SECRET, 32, 0644, "");
	refuses_file(SECRET, 32, 0640, "");
}

TEST(a_key_file_that_is_too_short_is_refused)
{
	refuses_file(SECRET, 15, 0600, "16");
}

TEST(a_key_file_that_is_too_long_is_refused)
{
	static char much[1025];
	memset(much, 'k', sizeof much);
	refuses_file(much, sizeof much, 0600, "1024");
}

TEST(a_key_file_that_is_not_there_is_named)
{
	refuses_file(NULL, 0, 0, "");
}

TEST(keys_of_a_wrong_size_are_refused)
{
	static char much[1025];
	static const struct setup defaults;
	only_tcp();
	for (int i = 0; i < 3; i++) {
		static const size_t sizes[] = {1, 15, sizeof much};
		gdrfab_info *hints = hints_new(&defaults), *info = NULL;
		memset(much, 'k', sizeof much);
		hints->auth_key = much;
		hints->auth_key_size = sizes[i];
		int rc = provider_getinfo("18515", 0, hints, &info);
		hints->auth_key = NULL;
		hints->auth_key_size = 0;
		gdrfab_freeinfo(hints);
		CHECK_EQ(rc, -EINVAL);
		CHECK(test_says(gdrfab_last_error(), "auth_key"));
	}
}

/* --- different keys --- */

/* Drives the listener until the other side has its answers. No connection request comes, and the owner gets an event about
 * refused clients, at most one a second. */
static void hears_of_refusals(struct node *n)
{
	struct event e;
	uint32_t event = UINT32_MAX;
	unsigned told = 0;
	node_open(n);
	node_listen(n);
	uint64_t since = test_now_ms();
	barrier(n);
	for (;;) {
		char word;
		struct eq_failure f;
		int got = eq_next(n->eq, &event, &e, &f);
		if (got > 0)
			test_fail(__FILE__, __LINE__, "the listener's program gets event %u", event);
		if (got < 0) {
			told++;
			CHECK_EQ(f.entry.data, GDRFAB_CONNREQ);
			CHECK(f.entry.object == n->pep && f.entry.context == n);
			CHECK_EITHER(f.entry.err, EACCES, EKEYREJECTED);
			if (!test_says((char *)f.data, "refused") || !test_says((char *)f.data, "key"))
				test_fail(__FILE__, __LINE__, "the words tell of no refused key: %s", (char *)f.data);
			CHECK(!test_says((char *)f.data, SECRET) && !test_says((char *)f.data, OTHER));
		}
		if (recv(n->oob, &word, 1, MSG_DONTWAIT) == 1)
			break;
	}
	uint64_t most = 1 + (test_now_ms() - since) / 1000;
	if (told < 1 || told > most)
		test_fail(__FILE__, __LINE__, "told %u times in %llu s", told, (unsigned long long)most - 1);
	node_close(n);
}

static void is_turned_away(struct node *n)
{
	struct eq_failure f;
	char byte = 'x', words[GDRFAB_CM_DATA_MAX + 1];
	node_open(n);
	barrier(n);
	for (int i = 0; i < 3; i++) {
		n->ep = ep_new(n, n->info, NULL);
		uint64_t start = test_now_ms();
		OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, "private", 7));
		EQ_FAILED(n->eq, n->ep, EACCES, 8000, &f);
		CHECK(test_now_ms() - start < (uint64_t)test_ms(4000));
		memcpy(words, f.data, GDRFAB_CM_DATA_MAX);
		words[GDRFAB_CM_DATA_MAX] = 0;
		if (!test_says(words, "key"))
			test_fail(__FILE__, __LINE__, "the words do not speak of a key: %s", words);
		CHECK(!test_says(words, SECRET) && !test_says(words, OTHER));
		CHECK_EQ(gdrfab_send(n->ep, &byte, 1, NULL, 0, NULL), -ESHUTDOWN);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	}
	oob_send(n, "e", 1);
	node_close(n);
}

static void keys_that_differ(const char *server, const char *client)
{
	struct setup s = {.key = {[TEST_SERVER] = server, [TEST_CLIENT] = client}};
	only_tcp();
	pair(&s, hears_of_refusals, is_turned_away, NULL);
}

TEST(another_key)
{
	keys_that_differ(SECRET, OTHER);
}

TEST(a_key_that_is_longer)
{
	keys_that_differ(SECRET, SECRET "!");
}

TEST(a_key_at_the_listener_alone)
{
	keys_that_differ(SECRET, NULL);
}

TEST(a_key_at_the_dialer_alone)
{
	keys_that_differ(NULL, SECRET);
}

/* --- by exchanged addresses: neither side gets a connection --- */

static void both_are_turned_away(struct node *n)
{
	struct {
		size_t len;
		char text[GDRFAB_ADDR_MAX];
	} mine, theirs;
	uint64_t ns = (uint64_t)test_ms(1500) * 1000000;
	node_open(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_setopt(n->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	memset(&mine, 0, sizeof mine);
	mine.len = sizeof mine.text;
	OK(gdrfab_ep_getname(n->ep, mine.text, &mine.len));
	oob_send(n, &mine, sizeof mine);
	oob_recv(n, &theirs, sizeof theirs);
	OK(gdrfab_ep_connect_addr(n->ep, theirs.text, theirs.len));
	struct event e;
	uint32_t event = UINT32_MAX;
	ssize_t size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, test_ms(8000), 0);
	if (size != -GDRFAB_EAVAIL)
		test_fail(__FILE__, __LINE__, "event %u, %s, instead of an error", event, test_number(size));
	struct eq_failure f;
	memset(&f, 0, sizeof f);
	f.entry.struct_size = sizeof f.entry;
	CHECK(gdrfab_eq_readerr(n->eq, &f.entry, 0) > 0);
	/* One side connects and gets the reason; the other waits for a peer that never proves its key. */
	CHECK_EITHER(f.entry.err, EACCES, ETIMEDOUT);
	barrier(n);
	node_close(n);
}

TEST(another_key_by_exchanged_addresses)
{
	struct setup s = {.by_address = true, .key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = OTHER}};
	only_tcp();
	pair(&s, both_are_turned_away, both_are_turned_away, NULL);
}

/* --- invalid proofs --- */

/* Version 3, with a key and a seal. */
static void says_sealed(unsigned char hello[RAW_HELLO])
{
	raw_put(hello + 8, 3, 2);
	raw_put(hello + 10, 3, 2);
	hello[12] = 3;
}

/* The answer of a sealing listener with a key to a HELLO of these versions and flags. */
static void is_answered(struct node *n, uint16_t lowest, uint16_t highest, unsigned char flags, unsigned status)
{
	unsigned char hello[RAW_HELLO], challenge[RAW_HELLO];
	int fd = raw_connect(n->service);
	CHECK(fd >= 0);
	raw_hello(hello, 5);
	raw_put(hello + 8, lowest, 2);
	raw_put(hello + 10, highest, 2);
	hello[12] = flags;
	CHECK(raw_send(fd, hello, RAW_HELLO) && raw_recv(fd, challenge, RAW_HELLO, 5000) == 1);
	CHECK_EQ(raw_get(challenge + 14, 2), status);
	CHECK(raw_closed(fd, 5000));
	raw_reset(fd);
}

static void proves_nothing(struct node *n)
{
	unsigned char bytes[RAW_INTRO + RAW_BODY_MAX], challenge[RAW_HELLO], nonces[32][32], answer[RAW_INTRO];
	uint64_t random = 17;
	/* This side does not use the library. */
	barrier(n);
	for (int i = 0; i < 32; i++) {
		int fd = raw_connect(n->service);
		CHECK(fd >= 0);
		raw_hello(bytes, 5);
		says_sealed(bytes);
		CHECK(raw_send(fd, bytes, RAW_HELLO) && raw_recv(fd, challenge, RAW_HELLO, 5000) == 1);
		CHECK_EQ(raw_get(challenge + 14, 2), 0);
		CHECK_EQ(challenge[12], 3);
		/* A challenge never repeats: a recorded proof is worthless. */
		memcpy(nonces[i], challenge + 16, 32);
		for (int k = 0; k < i; k++)
			CHECK(memcmp(nonces[k], nonces[i], 32) != 0);
		size_t len = raw_intro(bytes, 16, 65536, "let me in", 9);
		for (int k = 0; k < 4; k++)
			raw_put(bytes + 16 + 8 * k, i == 0 ? 0 : i == 1 ? UINT64_MAX : test_random(&random), 8);
		CHECK(raw_send(fd, bytes, len));
		int got = raw_recv(fd, answer, RAW_INTRO, 5000);
		if (got == 1) {
			CHECK_EQ(raw_get(answer + 4, 2), RAW_KEY_WRONG);
			CHECK_EQ(raw_get(answer, 4), 0);
			for (int k = 16; k < RAW_INTRO; k++)
				CHECK_EQ(answer[k], 0);
		}
		CHECK(got != -1);
		CHECK(raw_closed(fd, 5000));
		raw_reset(fd);
	}
	/* Clients that ask for less are refused: no key, a version without keys, no seal. */
	is_answered(n, 1, 3, 0, RAW_KEY_NEEDED);
	is_answered(n, 1, 1, 0, RAW_KEY_NEEDED);
	is_answered(n, 1, 2, 1, RAW_VERSION);
	is_answered(n, 1, 3, 1, RAW_SEAL_NEEDED);
	is_answered(n, 3, 3, 5, RAW_SEAL_NEEDED);
	oob_send(n, "e", 1);
}

TEST(proofs_that_are_none)
{
	struct setup s = {.key = {[TEST_SERVER] = SECRET}};
	only_tcp();
	pair(&s, hears_of_refusals, proves_nothing, NULL);
}

/* A listener that claims to have the key, and proves nothing. */
TEST(a_listener_that_proves_nothing)
{
	struct setup s = {.key = {[TEST_CLIENT] = SECRET}};
	char service[16];
	struct node n;
	only_tcp();
	int fd = raw_listen(service, sizeof service, 8);
	pid_t pid = test_fork(TEST_SERVER);
	if (pid == 0) {
		unsigned char bytes[RAW_INTRO + RAW_BODY_MAX], in[RAW_INTRO + RAW_BODY_MAX];
		int peer = accept(fd, NULL, NULL);
		CHECK(peer >= 0);
		CHECK_EQ(raw_recv(peer, in, RAW_HELLO, 5000), 1);
		CHECK_EQ(in[12] & 3, 3);
		raw_hello(bytes, 6);
		says_sealed(bytes);
		CHECK(raw_send(peer, bytes, RAW_HELLO));
		CHECK_EQ(raw_recv(peer, in, RAW_INTRO, 5000), 1);
		CHECK_EQ(raw_recv(peer, in + RAW_INTRO, (size_t)raw_get(in, 4), 5000), 1);
		/* The client's own proof, sent back. */
		size_t len = raw_intro(bytes, 16, 65536, NULL, 0);
		memcpy(bytes + 16, in + 16, 32);
		CHECK(raw_send(peer, bytes, len));
		raw_closed(peer, 5000);
		_exit(0);
	}
	node_alone(&n, &s);
	gdrfab_freeinfo(n.info);
	snprintf(n.service, sizeof n.service, "%s", service);
	node_info(&n);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	EQ_FAILED(n.eq, n.ep, EACCES, 8000, NULL);
	OK(gdrfab_ep_close(n.ep));
	n.ep = NULL;
	node_close(&n);
	close(fd);
}

/* --- the key is never shown --- */

static void hides(const char *text)
{
	static const char hex[] = "61207365637265742"; /* the beginning of SECRET */
	if (test_says(text, SECRET) || test_says(text, hex))
		test_fail(__FILE__, __LINE__, "the key is shown: %.500s", text);
}

static void log_line(TEST_UNUSED void *arg, TEST_UNUSED int level, const char *message)
{
	hides(message);
}

TEST(nothing_shows_the_key)
{
	struct setup s = {.key = {[TEST_CLIENT] = SECRET}};
	char text[8192];
	struct node n;
	only_tcp();
	OK(gdrfab_log_set(4, log_line, NULL));
	node_alone(&n, &s);
	/* The resulting info contains the key of the hints. */
	CHECK_EQ(n.info->auth_key_size, strlen(SECRET));
	CHECK(n.info->auth_key && memcmp(n.info->auth_key, SECRET, strlen(SECRET)) == 0);
	CHECK(gdrfab_tostr(n.info, GDRFAB_TYPE_INFO, text, sizeof text) > 0);
	hides(text);
	gdrfab_info *copy = gdrfab_dupinfo(n.info);
	CHECK(copy && copy->auth_key != n.info->auth_key && copy->auth_key_size == n.info->auth_key_size);
	CHECK_EQ(memcmp(copy->auth_key, SECRET, strlen(SECRET)), 0);
	gdrfab_freeinfo(copy);
	n.ep = ep_new(&n, n.info, NULL);
	OK(gdrfab_ep_connect(n.ep, n.info->dest_addr, n.info->dest_addrlen, NULL, 0));
	EQ_FAILED(n.eq, n.ep, ECONNREFUSED, 5000, NULL);
	OK(gdrfab_ep_close(n.ep));
	n.ep = NULL;
	node_close(&n);
	OK(gdrfab_log_set(0, NULL, NULL));
}

/* A copy of the info of a connection request. */
static void request_hides(struct node *n)
{
	char text[8192];
	node_up(n);
	CHECK(gdrfab_tostr(n->side == TEST_SERVER ? n->request : n->info, GDRFAB_TYPE_INFO, text, sizeof text) > 0);
	hides(text);
	node_down(n);
}

TEST(a_request_shows_no_key)
{
	struct setup s = {.key = {[TEST_SERVER] = SECRET, [TEST_CLIENT] = SECRET}};
	only_tcp();
	pair(&s, request_hides, request_hides, NULL);
}
