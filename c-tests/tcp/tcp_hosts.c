/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Host keys, in files that gdrfab-info creates: hosts that know each other's public key connect, also over several addresses,
 * and an unknown host is refused with that reason.
 */
#include "fab.h"

#include <sys/socket.h>
#include <sys/stat.h>

struct host {
	char file[256], name[300], public_key[80];
};

static void of_tcp(void)
{
	const char *prefix = getenv("PREFIX");
	char program[300];
	skip_unless(path_known(PATH_SOCKET), "this is about keys of sockets");
	snprintf(program, sizeof program, "%s/bin/gdrfab-info", prefix ? prefix : "");
	skip_unless(prefix && access(program, X_OK) == 0, "PREFIX does not say where gdrfab-info is");
}

static int make_key(const char *file, char *said, size_t size)
{
	char command[700];
	snprintf(command, sizeof command, "'%s/bin/gdrfab-info' --make-key '%s' 2>&1", getenv("PREFIX"), file);
	FILE *program = popen(command, "r");
	CHECK(program && fgets(said, (int)size, program));
	return pclose(program);
}

static void host_new(struct host *h, const char *name)
{
	const char *dir = getenv("TMPDIR");
	struct stat facts;
	snprintf(h->file, sizeof h->file, "%s/gdrfab-c-tests-%d-%s", dir && *dir ? dir : "/tmp", (int)getpid(), name);
	snprintf(h->name, sizeof h->name, "GDRFAB_TCP_KEY_FILE=%s", h->file);
	unlink(h->file);
	CHECK_EQ(make_key(h->file, h->public_key, sizeof h->public_key), 0);
	CHECK_EQ(strlen(h->public_key), 65);
	h->public_key[64] = 0;
	CHECK(stat(h->file, &facts) == 0 && (facts.st_mode & 0777) == 0600);
}

static void host_knows(const struct host *h, const char *names, const struct host *other)
{
	FILE *file = fopen(h->file, "a");
	CHECK(file && fprintf(file, "peer %s %s\n", names, other->public_key) > 0);
	CHECK_EQ(fclose(file), 0);
}

static void says_hello(struct node *n)
{
	const bool *rails = (const bool *)n->arg;
	if (rails)
		setenv("GDRFAB_TCP_RAILS", "127.0.0.1,127.0.0.2", 1);
	node_up(n);
	text_both_ways(n, "from host to host");
	uint64_t until = test_now_ms() + (uint64_t)test_ms(10000);
	for (uint32_t i = 0; rails && i < 2; i++) {
		gdrfab_rail_info rail;
		while (rail_query(n->ep, 0, i, &rail) != 2 || !rail.up) {
			CHECK(test_now_ms() < until);
			gdrfab_cq_read(n->cq, NULL, 0);
			test_sleep_ms(1);
		}
	}
	barrier(n);
	node_down(n);
}

/* Three hosts. The third takes no part, so any point serves as its key. */
static void meet(const char *as, side_fn server, side_fn client, const void *arg, bool known)
{
	struct host a, b;
	static const struct host c = {.public_key = "0900000000000000000000000000000000000000000000000000000000000000"};
	of_tcp();
	host_new(&a, "a");
	host_new(&b, "b");
	if (known)
		host_knows(&a, "192.0.2.1,host.example", &b);
	host_knows(&a, "192.0.2.2", &c);
	host_knows(&b, as, &a);
	host_knows(&b, "192.0.2.2", &c);
	struct setup s = {.env = {[TEST_SERVER] = {a.name}, [TEST_CLIENT] = {b.name}}};
	pair(&s, server, client, arg);
	unlink(a.file);
	unlink(b.file);
}

TEST(hosts_that_know_each_other)
{
	meet("*", says_hello, says_hello, NULL, true);
}

/* The file names one address of the host, and the connection has two rails. */
TEST(rails_are_of_the_same_host)
{
	static const bool rails = true;
	skip_unless(!getenv("TEST_NODE"), "this is about addresses of the loopback");
	meet("127.0.0.1", says_hello, says_hello, &rails, true);
}

static void hears_of_a_refusal(struct node *n)
{
	char word = 0;
	int told = 0;
	node_open(n);
	node_listen(n);
	barrier(n);
	while (recv(n->oob, &word, 1, MSG_DONTWAIT) != 1) {
		struct event e;
		struct eq_failure f;
		uint32_t event;
		int got = eq_next(n->eq, &event, &e, &f);
		CHECK(got <= 0);
		if (got < 0) {
			CHECK_EQ(f.entry.err, EKEYREJECTED);
			CHECK(test_says((char *)f.data, "GDRFAB_TCP_KEY_FILE"));
			told++;
		}
	}
	CHECK_EQ(told, 1);
	node_close(n);
}

static void is_turned_away(struct node *n)
{
	struct eq_failure f;
	char words[GDRFAB_CM_DATA_MAX + 1];
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0));
	EQ_FAILED(n->eq, n->ep, EKEYREJECTED, 8000, &f);
	memcpy(words, f.data, GDRFAB_CM_DATA_MAX);
	words[GDRFAB_CM_DATA_MAX] = 0;
	CHECK(test_says(words, "GDRFAB_TCP_KEY_FILE"));
	OK(gdrfab_ep_close(n->ep));
	n->ep = NULL;
	oob_send(n, "e", 1);
	node_close(n);
}

TEST(a_host_that_is_not_known)
{
	meet("*", hears_of_a_refusal, is_turned_away, NULL, false);
}

TEST(a_key_takes_no_other_keys_place)
{
	struct host a;
	char said[400];
	of_tcp();
	host_new(&a, "a");
	CHECK(make_key(a.file, said, sizeof said) != 0);
	CHECK(test_says(said, a.file));
	unlink(a.file);
}

/* The error text names the file and the line, and does not quote the line. */
TEST(a_file_that_is_wrong_is_told_by_its_line)
{
	static const struct setup defaults;
	struct host a;
	gdrfab_info *hints = hints_new(&defaults), *info = NULL;
	gdrfab_fabric *fabric = NULL;
	gdrfab_domain *domain = NULL;
	of_tcp();
	host_new(&a, "a");
	host_knows(&a, "*", &a);
	host_knows(&a, "192.0.2.1", &a);
	putenv(a.name);
	OK(provider_getinfo("18515", 0, hints, &info));
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	CHECK_EQ(gdrfab_domain_open(fabric, info, NULL, &domain), -EINVAL);
	const char *said = gdrfab_last_error();
	CHECK(test_says(said, a.file) && test_says(said, "line 4") && !test_says(said, a.public_key));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
	unlink(a.file);
}
