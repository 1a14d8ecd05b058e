/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Only a process that was given a listener's handle can connect. Other requests are refused at once, logged once,
 * and do not delay anybody.
 */
#include "nccl_raw.h"

#include "../proof.h"

#include <fcntl.h>
#include <sys/socket.h>

/* The test vectors of the paper's authors: key 00 01 ... 0f, message 00 01 ..., of which 0, 8 and 16 bytes. */
static void hash(TEST_UNUSED const void *arg)
{
	static const unsigned char want[3][8] = {{0x31, 0x0e, 0x0e, 0xdd, 0x47, 0xdb, 0x6f, 0x72},
						 {0x62, 0x24, 0x93, 0x9a, 0x79, 0xf5, 0xf5, 0x93},
						 {0xdb, 0x9b, 0xc2, 0x57, 0x7f, 0xcc, 0x2a, 0x3f}};
	unsigned char bytes[16];
	uint64_t words[2];
	for (unsigned char i = 0; i < sizeof bytes; i++)
		bytes[i] = i;
	memcpy(words, bytes, sizeof words);
	for (size_t n = 0; n < 3; n++) {
		uint64_t got = siphash(words, words, n);
		CHECK(memcmp(&got, want[n], sizeof got) == 0);
	}
}

/* Accepts connections until the other side is at the barrier. */
static void *accept_until_met(struct node *n, void *listener)
{
	void *comm = NULL, *found = NULL;
	char word;
	while (recv(n->oob, &word, 1, MSG_PEEK | MSG_DONTWAIT) < 0 && errno == EAGAIN) {
		NET(net_accept(listener, &comm));
		CHECK(!comm || !found);
		found = comm ? comm : found;
		test_sleep_ms(1);
	}
	barrier(n);
	return found;
}

static size_t times_said(const char *what)
{
	size_t count = 0;
	for (const char *at = log_warnings(); (at = strstr(at, what)) != NULL; at++)
		count++;
	return count;
}

/* --- the data that a proof covers --- */

static void guards(struct node *n)
{
	struct handle h;
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	log_forget();
	CHECK(accept_until_met(n, listener) == NULL);
	CHECK_EQ(times_said("refused"), 1);
	CHECK(test_says(log_warnings(), "not"));
	void *comm = accept_from(listener);
	barrier(n);
	CHECK(accept_until_met(n, listener) == NULL);
	CHECK_EQ(times_said("refused"), 1);
	NET(net.close_recv(comm));
	/* Others can still connect. */
	struct link self = link_to_itself(&h, listener);
	link_down(&self);
	NET(net.close_listen(listener));
	barrier(n);
	net_close(n);
}

static void tries(struct node *n)
{
	struct handle h, other;
	struct hello hello, answer;
	node_open(n);
	oob_recv(n, &h, sizeof h);
	/* Every shorter length, and no bytes at all. */
	hello = hello_for(&h, false, 1, 2);
	for (size_t size = 0; size < sizeof hello; size++)
		CHECK(!knock(n, &h, size ? &hello : NULL, size, &answer));
	/* A changed bit in each byte, the proof's own bytes included. */
	for (size_t i = 0; i < sizeof hello; i++) {
		unsigned char *at = (unsigned char *)&hello + i;
		*at = (unsigned char)(*at ^ 1u << i % 8);
		CHECK(!knock(n, &h, &hello, sizeof hello, &answer));
		*at = (unsigned char)(*at ^ 1u << i % 8);
	}
	/* Other secrets, and none. */
	for (size_t i = 0; i <= 16; i++) {
		other = h;
		if (i < 16)
			other.bytes[HANDLE_SECRET + i] = (char)(other.bytes[HANDLE_SECRET + i] ^ 1);
		else
			memset(other.bytes + HANDLE_SECRET, 0, 16);
		hello_prove(&hello, &other);
		CHECK(!knock(n, &h, &hello, sizeof hello, &answer));
	}
	/* The hello of an accepting side. */
	hello = hello_for(&h, true, 1, 2);
	CHECK(!knock(n, &h, &hello, sizeof hello, &answer));
	barrier(n);

	hello = hello_for(&h, false, 1, 2);
	CHECK(knock(n, &h, &hello, sizeof hello, &answer));
	struct hello again = answer;
	hello_prove(&again, &h);
	CHECK_EQ(answer.answers, 1);
	CHECK_EQ(answer.nonce, hello.nonce);
	CHECK_EQ(answer.proof, again.proof);
	barrier(n);
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	/* The same bytes once more, and the answer sent back as it came. */
	CHECK(!knock(n, &h, &hello, sizeof hello, &answer));
	CHECK(!knock(n, &h, &again, sizeof again, &answer));
	barrier(n);
	node_down(n);
}

static void proof(const void *arg)
{
	pair(NULL, guards, tries, arg);
}

/* --- many requests without a proof, and one with it --- */

#define CALLERS 48

static void lets_one_in(struct node *n)
{
	struct handle h;
	void *none;
	timeout_is("100");
	net_open();
	void *listener = listen_at(0, &h);
	oob_send(n, &h, sizeof h);
	barrier(n);
	log_forget();
	while (!times_said("refused")) {
		NET(net_accept(listener, &none));
		test_sleep_ms(1);
	}
	/* If refused requests took places, this connection would have to wait for a part of the time limit. */
	uint64_t start = test_now_ms();
	struct link self = link_to_itself(&h, listener);
	CHECK(test_now_ms() - start < (uint64_t)test_ms(9000));
	message_to_itself(n, &self, 100000, 1);
	CHECK(accept_until_met(n, listener) == NULL);
	CHECK_EQ(times_said("refused"), 1);
	NET(net.close_listen(listener));
	link_down(&self);
	net_close(n);
}

static void calls_as_others(struct node *n)
{
	static gdrfab_ep *eps[CALLERS];
	struct handle h;
	struct event in;
	uint32_t kind;
	node_open(n);
	oob_recv(n, &h, sizeof h);
	for (int i = 0; i < CALLERS; i++) {
		struct hello hello = hello_for(&h, false, 1, 2);
		hello.proof ^= 1;
		eps[i] = ep_new(n, n->info, NULL);
		OK(gdrfab_ep_connect(eps[i], h.bytes + HANDLE_ADDRESS, strlen(h.bytes + HANDLE_ADDRESS) + 1, &hello, sizeof hello));
	}
	/* Waits until the requests are sent; no answer comes yet. */
	CHECK_EQ(gdrfab_eq_sread(n->eq, &kind, &in, sizeof in.entry + sizeof in.data, 200, 0), -EAGAIN);
	barrier(n);
	for (int i = 0; i < CALLERS; i++) {
		gdrfab_eq_err_entry e = {.struct_size = sizeof e};
		CHECK_EQ(gdrfab_eq_sread(n->eq, &kind, &in, sizeof in.entry + sizeof in.data, test_ms(5000), 0), -GDRFAB_EAVAIL);
		CHECK(gdrfab_eq_readerr(n->eq, &e, 0) > 0);
		CHECK_EQ(e.prov_errno, GDRFAB_PROV_REJECTED);
	}
	for (int i = 0; i < CALLERS; i++)
		OK(gdrfab_ep_close(eps[i]));
	barrier(n);
	node_close(n);
}

static void one_of_many(const void *arg)
{
	pair(NULL, lets_one_in, calls_as_others, arg);
}

/* --- another process at the listener's address --- */

static void stands_in(struct node *n)
{
	struct handle h = {{0}}, other;
	uint32_t magic = MAGIC;
	size_t size = HANDLE_SECRET - 8 - HANDLE_ADDRESS;
	struct hello theirs;
	struct event in;
	node_open(n);
	node_listen(n);
	memcpy(h.bytes, &magic, sizeof magic);
	memset(h.bytes + HANDLE_SECRET, 7, 16);
	OK(gdrfab_pep_getname(n->pep, h.bytes + HANDLE_ADDRESS, &size));
	oob_send(n, &h, sizeof h);
	other = h;
	other.bytes[HANDLE_SECRET] = 8;
	for (int i = 0; i < 3; i++) {
		EVENT(n->eq, GDRFAB_CONNREQ, n->pep, &in);
		CHECK_EQ(in.data_len, sizeof theirs);
		memcpy(&theirs, in.data, sizeof theirs);
		/* Without the secret; with an old answer; with the connecting side's own hello. */
		struct hello answer = hello_for(&h, true, 1, 2);
		if (i == 0)
			answer.nonce = theirs.nonce, hello_prove(&answer, &other);
		if (i == 2)
			answer = theirs;
		if (i == 0)
			node_domain(n, in.entry.info);
		n->ep = ep_new(n, in.entry.info, NULL);
		OK(gdrfab_ep_accept(n->ep, &answer, sizeof answer));
		gdrfab_freeinfo(in.entry.info);
		EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
		barrier(n);
		OK(gdrfab_ep_close(n->ep));
		n->ep = NULL;
	}
	node_down(n);
}

static void is_not_taken_in(struct node *n)
{
	struct handle h;
	net_open();
	oob_recv(n, &h, sizeof h);
	for (int i = 0; i < 3; i++) {
		struct handle mine = h;
		ncclResult_t result = ncclSuccess;
		void *comm = NULL;
		uint64_t until = test_now_ms() + (uint64_t)test_ms(5000);
		log_forget();
		while (result == ncclSuccess && test_now_ms() < until) {
			result = net_connect(net.ctx, 0, &mine, &comm);
			CHECK(comm == NULL);
			test_sleep_ms(1);
		}
		CHECK_EQ(result, ncclRemoteError);
		CHECK(test_says(log_warnings(), "is not the one that made the handle"));
		barrier(n);
	}
	barrier(n);
	net_close(n);
}

static void impostor(const void *arg)
{
	pair(NULL, stands_in, is_not_taken_in, arg);
}

/* --- a key in addition --- */

#define KEY "a key of this test 0123456789abc"
#define OTHER_KEY "another one of it 0123456789abcd"

static const struct keys {
	const char *of[TEST_SIDES];
	bool equal;
} keys[] = {
	{{[TEST_SERVER] = KEY, [TEST_CLIENT] = KEY}, true},
	{{[TEST_SERVER] = KEY, [TEST_CLIENT] = OTHER_KEY}, false},
	{{[TEST_SERVER] = KEY}, false},
	{{[TEST_CLIENT] = KEY}, false},
};

/* The file is read when the first listener or connection is made, and may be gone from then on. */
static char path[300];

static void opened_with_key(const struct node *n)
{
	const char *dir = getenv("TMPDIR"), *key = ((const struct keys *)n->arg)->of[n->side];
	if (strcmp(provider(), "tcp") != 0)
		test_skip("this is about keys of sockets");
	unsetenv("GDRFAB_TCP_KEY_FILE");
	snprintf(path, sizeof path, "%s/gdrfab-nccl-%d.key", dir && *dir ? dir : "/tmp", (int)getpid());
	if (key) {
		int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
		CHECK(fd >= 0 && write(fd, key, strlen(key)) == (ssize_t)strlen(key) && close(fd) == 0);
		setenv("GDRFAB_TCP_KEY_FILE", path, 1);
	}
	net_open();
}

static void has_key(struct node *n)
{
	struct handle h;
	opened_with_key(n);
	void *listener = listen_at(0, &h);
	unlink(path);
	oob_send(n, &h, sizeof h);
	if (((const struct keys *)n->arg)->equal) {
		void *comm = accept_from(listener);
		message_in(n, comm, 100000, 1);
		barrier(n);
		NET(net.close_recv(comm));
	} else {
		CHECK(accept_until_met(n, listener) == NULL);
	}
	NET(net.close_listen(listener));
	net_close(n);
}

static void has_handle(struct node *n)
{
	ncclResult_t result = ncclSuccess;
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	void *comm = NULL;
	struct handle h;
	opened_with_key(n);
	oob_recv(n, &h, sizeof h);
	log_forget();
	while (result == ncclSuccess && !comm && test_now_ms() < until) {
		result = net_connect(net.ctx, 0, &h, &comm);
		test_sleep_ms(1);
	}
	unlink(path);
	if (((const struct keys *)n->arg)->equal) {
		CHECK(result == ncclSuccess && comm);
		message_out(n, comm, 100000, 1);
		barrier(n);
		NET(net.close_send(comm));
	} else {
		network_error(__FILE__, __LINE__, result);
		if (!test_says(log_warnings(), "GDRFAB_TCP_KEY_FILE"))
			test_fail(__FILE__, __LINE__, "it said \"%s\"", log_warnings());
		barrier(n);
	}
	net_close(n);
}

static void key_besides(const void *arg)
{
	pair(NULL, has_key, has_handle, arg);
}

/* --- secrets after closing --- */

/* Counts this number in the memory of this process, except its stacks. The caller passes it reversed, so as not to
 * be found itself. */
static size_t times_kept(uint64_t turned)
{
	char line[400];
	size_t found = 0;
	FILE *maps = fopen("/proc/self/maps", "re");
	CHECK(maps != NULL);
	while (fgets(line, sizeof line, maps)) {
		unsigned long from, to, inode;
		char mode[5], name[64] = "";
		if (sscanf(line, "%lx-%lx %4s %*s %*s %lu %63s", &from, &to, mode, &inode, name) < 4)
			continue;
		if (strcmp(mode, "rw-p") != 0 || inode || strncmp(name, "[stack", 6) == 0 || strncmp(name, "[v", 2) == 0)
			continue;
		for (const volatile uint64_t *at = (const volatile uint64_t *)from; at < (const volatile uint64_t *)to; at++)
			found += *at == ~turned;
	}
	fclose(maps);
	return found;
}

static void forgets(TEST_UNUSED const void *arg)
{
	struct node n;
	struct handle h;
	uint64_t turned;
	net_alone(&n);
	net_open();
	void *listener = listen_at(0, &h);
	memcpy(&turned, h.bytes + HANDLE_SECRET + 8, sizeof turned);
	turned = ~turned;
	memset(&h, 0, sizeof h);
	CHECK(times_kept(turned) > 0);
	NET(net.close_listen(listener));
	CHECK_EQ(times_kept(turned), 0);
	net_close(&n);
}

TEST_TABLE(nccl_handle)
{
	if (nccl_absent())
		return;
	test_add("hash_of_the_proof", hash, NULL, 10);
	test_add("proof_of_every_byte_and_good_once", proof, NULL, 60);
	test_add("one_of_many", one_of_many, NULL, 40);
	test_add("listener_without_the_secret", impostor, NULL, 40);
	test_add("the_same_key_besides", key_besides, &keys[0], 40);
	test_add("another_key", key_besides, &keys[1], 40);
	test_add("no_key_where_one_is_asked_for", key_besides, &keys[2], 40);
	test_add("a_key_where_none_is_known", key_besides, &keys[3], 40);
	test_add("closed_listener_forgets", forgets, NULL, 40);
}
