/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Many connections, connections in both directions at once, to the own process and to bad addresses, and beside a client
 * that does not speak the protocol. */
#include "fab.h"

#include <netdb.h>
#include <sys/socket.h>
#include <sys/un.h>

/* --- both listen, both connect --- */

static void mutual(struct node *n, enum test_side me)
{
	struct {
		size_t len;
		char text[GDRFAB_ADDR_MAX];
	} mine, theirs;
	char out = (char)('a' + me), in[2] = {0, 0};
	gdrfab_ep *ep[2]; /* the endpoint that connects, the endpoint that accepts */
	int connected = 0;

	memset(&mine, 0, sizeof mine);
	mine.len = sizeof mine.text;
	node_open(n);
	node_listen(n);
	OK(gdrfab_pep_getname(n->pep, mine.text, &mine.len));
	oob_send(n, &mine, sizeof mine);
	oob_recv(n, &theirs, sizeof theirs);
	if (!n->domain)
		node_domain(n, n->info);
	/* A listener's info contains its own address; the connecting endpoint needs an info without one. */
	struct node connector = *n;
	connector.side = TEST_CLIENT;
	node_info(&connector);
	ep[0] = ep_new(n, connector.info, NULL);
	ep[1] = NULL;
	OK(gdrfab_ep_connect(ep[0], theirs.text, theirs.len, NULL, 0));
	while (connected < 2) {
		uint32_t event = UINT32_MAX;
		struct event e;
		ssize_t size = gdrfab_eq_sread(n->eq, &event, &e, sizeof e.entry + sizeof e.data, test_ms(10000), 0);
		if (size < 0)
			test_fail(__FILE__, __LINE__, "%s%s", test_number(size), test_words(size));
		if (event == GDRFAB_CONNREQ) {
			CHECK(e.entry.object == n->pep && !ep[1]);
			ep[1] = ep_new(n, e.entry.info, NULL);
			gdrfab_freeinfo(e.entry.info);
			OK(gdrfab_ep_accept(ep[1], NULL, 0));
		} else {
			CHECK_EQ(event, GDRFAB_CONNECTED);
			CHECK(e.entry.object == ep[0] || e.entry.object == ep[1]);
			connected++;
		}
	}
	/* Data sent by this side's connecting endpoint arrives at the other side's accepting endpoint. */
	for (int i = 0; i < 2; i++)
		POST(n->cq, gdrfab_recv(ep[i], &in[i], 1, local_desc(n, &in[i], 1), 0, &in[i]));
	meet_if_hasty(n);
	POST(n->cq, gdrfab_send(ep[0], &out, 1, local_desc(n, &out, 1), 0, &out));
	done entry;
	CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	CHECK_EQ(in[0], 0);
	CHECK_EQ(in[1], me == TEST_SERVER ? 'a' + TEST_CLIENT : 'a' + TEST_SERVER);
	barrier(n);
	OK(gdrfab_ep_close(ep[0]));
	OK(gdrfab_ep_close(ep[1]));
	gdrfab_freeinfo(connector.info);
	node_down(n);
}

static void mutual_server(struct node *n)
{
	mutual(n, TEST_SERVER);
}

static void mutual_client(struct node *n)
{
	/* The client listens too, under its own name. */
	n->side = TEST_SERVER;
	unique_service(n->service, sizeof n->service);
	mutual(n, TEST_CLIENT);
}

TEST(both_listen_and_connect)
{
	pair(NULL, mutual_server, mutual_client, NULL);
}

/* --- names --- */

struct name {
	size_t len;
	char text[GDRFAB_ADDR_MAX];
};

static void named(struct node *n)
{
	struct name mine, theirs, peer;
	node_open(n);
	n->ep = ep_new(n, n->info, n);
	/* With a buffer that is too small only the needed size is returned. */
	memset(&mine, 'x', sizeof mine);
	mine.len = 1;
	CHECK_EQ(gdrfab_ep_getname(n->ep, mine.text, &mine.len), -GDRFAB_ETOOSMALL);
	CHECK(mine.len > 1 && mine.len <= GDRFAB_ADDR_MAX);
	CHECK_EQ(mine.text[1], 'x');
	size_t need = mine.len;
	OK(gdrfab_ep_getname(n->ep, mine.text, &mine.len));
	CHECK_EQ(mine.len, need);
	CHECK_EQ(strnlen(mine.text, need), need - 1);
	CHECK_EQ(strncmp(mine.text, provider(), strlen(provider())), 0);
	/* Every call returns the same name. */
	memset(&peer, 0, sizeof peer);
	peer.len = sizeof peer.text;
	OK(gdrfab_ep_getname(n->ep, peer.text, &peer.len));
	CHECK_EQ(strcmp(peer.text, mine.text), 0);
	CHECK_EQ(gdrfab_ep_getpeer(n->ep, peer.text, &peer.len), -ENOTCONN);

	oob_send(n, &mine, sizeof mine);
	oob_recv(n, &theirs, sizeof theirs);
	CHECK(strcmp(mine.text, theirs.text) != 0);
	OK(gdrfab_ep_connect_addr(n->ep, theirs.text, theirs.len));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	memset(&peer, 'x', sizeof peer);
	peer.len = 1;
	CHECK_EQ(gdrfab_ep_getpeer(n->ep, peer.text, &peer.len), -GDRFAB_ETOOSMALL);
	CHECK_EQ(peer.text[1], 'x');
	OK(gdrfab_ep_getpeer(n->ep, peer.text, &peer.len));
	CHECK_EQ(peer.len, theirs.len);
	CHECK_EQ(strcmp(peer.text, theirs.text), 0);
	barrier(n);
	node_down(n);
}

TEST(names_of_both_ends)
{
	struct setup s = {.by_address = true};
	pair(&s, named, named, NULL);
}

static void named_listener(struct node *n)
{
	struct name mine;
	node_open(n);
	OK(gdrfab_pep_open(n->fabric, n->info, n, &n->pep));
	OK(gdrfab_pep_bind_eq(n->pep, n->eq, 0));
	OK(gdrfab_pep_listen(n->pep));
	mine.len = 3;
	CHECK_EQ(gdrfab_pep_getname(n->pep, mine.text, &mine.len), -GDRFAB_ETOOSMALL);
	OK(gdrfab_pep_getname(n->pep, mine.text, &mine.len));
	CHECK_EQ(strcmp(mine.text, n->info->src_addr), 0);
	CHECK_EQ(mine.len, n->info->src_addrlen);
	barrier(n);
	node_accept(n);
	barrier(n);
	node_down(n);
}

static void knows_its_peer(struct node *n)
{
	struct name peer;
	node_up(n);
	peer.len = sizeof peer.text;
	OK(gdrfab_ep_getpeer(n->ep, peer.text, &peer.len));
	CHECK_EQ(strncmp(peer.text, traits()->scheme, strlen(traits()->scheme)), 0);
	CHECK_EQ(peer.text[peer.len - 1], 0);
	node_down(n);
}

TEST(name_of_a_listener)
{
	pair(NULL, named_listener, knows_its_peer, NULL);
}

/* --- many --- */

#define MANY 200

static void many_side(struct node *n)
{
	static gdrfab_ep *ep[MANY];
	static uint32_t out[MANY], in[MANY];
	int count = test_count(MANY, 20);
	node_open(n);
	if (n->side == TEST_SERVER) {
		node_listen(n);
		barrier(n);
		for (int i = 0; i < count; i++) {
			gdrfab_info *request = node_await_request(n);
			if (!n->domain)
				node_domain(n, request);
			ep[i] = ep_new(n, request, &ep[i]);
			OK(gdrfab_ep_accept(ep[i], &i, sizeof i));
			EVENT(n->eq, GDRFAB_CONNECTED, ep[i], NULL);
			gdrfab_freeinfo(request);
		}
	} else {
		barrier(n);
		for (int i = 0; i < count; i++) {
			struct event e;
			int number = -1;
			ep[i] = ep_new(n, n->info, &ep[i]);
			OK(gdrfab_ep_connect(ep[i], n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
			EVENT(n->eq, GDRFAB_CONNECTED, ep[i], &e);
			CHECK_EQ(e.data_len, sizeof number);
			memcpy(&number, e.data, sizeof number);
			CHECK_EQ(number, i);
		}
	}
	for (int i = 0; i < count; i++)
		POST(n->cq, gdrfab_recv(ep[i], &in[i], sizeof in[i], local_desc(n, in, sizeof in), 0, &in[i]));
	meet_if_hasty(n);
	for (int i = 0; i < count; i++) {
		out[i] = n->side * 1000 + (uint32_t)i;
		POST(n->cq, gdrfab_send(ep[i], &out[i], sizeof out[i], local_desc(n, out, sizeof out), 0, &out[i]));
	}
	for (int i = 0; i < 2 * count; i++) {
		done entry;
		CHECK_EQ(cq_next(n->cq, &entry, 10000), 1);
	}
	uint32_t theirs = n->side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
	for (int i = 0; i < count; i++)
		CHECK_EQ(in[i], theirs * 1000 + (uint32_t)i);
	barrier(n);
	for (int i = 0; i < count; i++)
		OK(gdrfab_ep_close(ep[i]));
	node_down(n);
}

TEST_WITHIN(60, two_hundred_endpoints)
{
	/* The queue has room for all outstanding operations: not every adapter's queue can grow. */
	struct setup s = {.cq_size = traits()->adapter ? 65536 : 0};
	pair(&s, many_side, many_side, NULL);
}

static void again_and_again(struct node *n)
{
	int rounds = test_count(300, 20);
	struct node fresh;
	for (int i = 0; i < rounds; i++) {
		fresh = *n;
		node_up(&fresh);
		node_down(&fresh);
	}
}

TEST_WITHIN(60, connect_and_close_again_and_again)
{
	pair(NULL, again_and_again, again_and_again, NULL);
}

/* --- connections to the own process --- */

TEST(two_endpoints_of_one_process)
{
	struct setup s = {.by_address = true};
	char name[2][GDRFAB_ADDR_MAX], in[16] = "", out[16] = "to myself";
	size_t len[2] = {GDRFAB_ADDR_MAX, GDRFAB_ADDR_MAX};
	gdrfab_ep *ep[2];
	struct mem m;
	struct node n;
	node_alone(&n, &s);
	for (int i = 0; i < 2; i++) {
		ep[i] = ep_new(&n, n.info, NULL);
		OK(gdrfab_ep_getname(ep[i], name[i], &len[i]));
	}
	for (int i = 0; i < 2; i++)
		OK(gdrfab_ep_connect_addr(ep[i], name[!i], len[!i]));
	EVENT(n.eq, GDRFAB_CONNECTED, NULL, NULL);
	EVENT(n.eq, GDRFAB_CONNECTED, NULL, NULL);
	POST(n.cq, gdrfab_recv(ep[1], in, sizeof in, local_desc(&n, in, sizeof in), 0, in));
	POST(n.cq, gdrfab_send(ep[0], out, sizeof out, local_desc(&n, out, sizeof out), 0, out));
	done entry;
	CHECK_EQ(cq_next(n.cq, &entry, 10000), 1);
	CHECK_EQ(cq_next(n.cq, &entry, 10000), 1);
	CHECK_EQ(strcmp(in, out), 0);
	for (int k = 0; k < EVERYWHERE; k++) {
		mem_new(&n, &m, &memkinds[k], 4096);
		memset(m.addr, 0, 4096);
		mem_register(&n, &m, 0, 4096, REMOTE_ACCESS, 0);
		void *desc = local_desc(&n, out, sizeof out);
		POST(n.cq, gdrfab_write(ep[0], out, sizeof out, desc, 0, m.base, m.key, out));
		DONE(n.cq, out, GDRFAB_WRITE, NULL);
		CHECK_EQ(strcmp((char *)m.addr, out), 0);
		mem_end(&n, &m);
	}
	for (int i = 0; i < 2; i++)
		OK(gdrfab_ep_close(ep[i]));
	node_close(&n);
}

/* --- invalid addresses --- */

static void try_address(struct node *n, const char *what, const void *addr, size_t len, bool by_address)
{
	gdrfab_ep *ep = ep_new(n, n->info, NULL);
	uint64_t ns = 300000000;
	OK(gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	char own[GDRFAB_ADDR_MAX];
	size_t own_len = sizeof own;
	if (by_address)
		OK(gdrfab_ep_getname(ep, own, &own_len));
	int rc = by_address ? gdrfab_ep_connect_addr(ep, addr, len) : gdrfab_ep_connect(ep, addr, len, NULL, 0);
	if (rc != -EINVAL)
		test_wrong(__FILE__, __LINE__, "%s (%s): %s, not -EINVAL%s", what,
			   by_address ? "connect_addr" : "connect", test_number(rc), test_words(rc));
	else if (!strstr(gdrfab_last_error(), "addr"))
		test_wrong(__FILE__, __LINE__, "%s: the words do not speak of the address: %s", what,
			   gdrfab_last_error());
	OK(gdrfab_ep_close(ep));
}

TEST(garbage_addresses)
{
	static char large[100000], full[GDRFAB_ADDR_MAX + 8];
	const char *scheme = traits()->scheme, *other = traits()->numbered ? "shm://name" : "tcp://1.2.3.4:5";
	size_t len = strlen(scheme);
	struct node n;
	memset(large, 'a', sizeof large);
	memcpy(large, scheme, len);
	memset(full, 'b', sizeof full);
	memcpy(full, scheme, len);
	node_alone(&n, NULL);
	for (int by_address = 0; by_address < 2; by_address++) {
		try_address(&n, "NULL", NULL, 10, by_address);
		try_address(&n, "no bytes", n.info->dest_addr, 0, by_address);
		try_address(&n, "another scheme", other, strlen(other) + 1, by_address);
		try_address(&n, "no scheme", "abc", 4, by_address);
		try_address(&n, "no name", scheme, len + 1, by_address);
		try_address(&n, "too long", large, sizeof large, by_address);
		try_address(&n, "a little too long", full, sizeof full, by_address);
		if (traits()->numbered) {
			char no_port[64];
			int size = snprintf(no_port, sizeof no_port, "%s10.0.0.1:", scheme) + 1;
			try_address(&n, "no port", no_port, (size_t)size, by_address);
		}
		try_address(&n, "binary", "\x01\x02\xff\xfe\x00\x00", 6, by_address);
	}
	node_close(&n);
}

/* --- a client without the protocol talks to the listener's socket --- */

static bool find_address(const char *service, struct sockaddr_storage *addr, socklen_t *len, int *type)
{
	struct addrinfo hints = {.ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM}, *found = NULL;
	if (getaddrinfo(node_name(), service, &hints, &found) != 0)
		return false;
	memcpy(addr, found->ai_addr, found->ai_addrlen);
	*len = found->ai_addrlen;
	*type = SOCK_STREAM;
	freeaddrinfo(found);
	return true;
}

/* Finds the listener's socket: by its port, or by its name in /proc/net/unix. */
static bool find_socket(const char *service, struct sockaddr_storage *to, socklen_t *len, int *type)
{
	if (traits()->numbered)
		return find_address(service, to, len, type);
	char line[512];
	bool found = false;
	struct sockaddr_un *addr = (struct sockaddr_un *)to;
	FILE *file = fopen("/proc/net/unix", "r");
	if (!file)
		return false;
	while (!found && fgets(line, sizeof line, file)) {
		unsigned flags, kind, state;
		int at = 0;
		char *name = strstr(line, service);
		if (!name || sscanf(line, "%*s %*s %*s %x %x %x %*s %n", &flags, &kind, &state, &at) < 3 || at == 0)
			continue;
		char *path = line + at;
		path[strcspn(path, "\n")] = 0;
		memset(addr, 0, sizeof *addr);
		addr->sun_family = AF_UNIX;
		size_t size = strlen(path) < sizeof addr->sun_path ? strlen(path) : sizeof addr->sun_path - 1;
		memcpy(addr->sun_path, path, size);
		if (path[0] == '@')
			addr->sun_path[0] = 0;
		*len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + size + (path[0] != '@'));
		*type = (int)kind;
		found = true;
	}
	fclose(file);
	return found;
}

static void overrun_listener(struct node *n)
{
	node_up(n);
	node_down(n);
}

static void talks_garbage(struct node *n)
{
	struct sockaddr_storage addr;
	socklen_t len = 0;
	int type = 0, made = 0, rounds = test_count(200, 20);
	uint64_t random = 99;
	static uint64_t bytes[512];
	node_open(n);
	barrier(n);
	if (!find_socket(n->service, &addr, &len, &type))
		test_skip("the listener's socket is not in /proc/net/unix");
	for (int i = 0; i < rounds; i++) {
		/* A TCP connection of the other side's kernel arrives a moment later. */
		bool wait = addr.ss_family != AF_UNIX;
		int fd = socket(addr.ss_family, type | SOCK_CLOEXEC | (wait ? 0 : SOCK_NONBLOCK), 0);
		if (connect(fd, (struct sockaddr *)&addr, len) == 0) {
			for (size_t k = 0; k < 512; k++)
				bytes[k] = i % 3 == 0 ? 0 : i % 3 == 1 ? test_random(&random) : UINT64_MAX;
			ssize_t sent = send(fd, bytes, (size_t)(test_random(&random) % sizeof bytes), MSG_NOSIGNAL);
			made += sent >= 0;
		}
		close(fd);
	}
	CHECK(made > 0);
	/* The next connection works like any other. */
	node_connect(n);
	barrier(n);
	node_down(n);
}

TEST(garbage_to_the_listener)
{
	skip_unless(!traits()->adapter, "its listener is the kernel's, not a socket of the library's");
	pair(NULL, overrun_listener, talks_garbage, NULL);
}
