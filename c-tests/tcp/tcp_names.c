/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Host names. A name server that does not answer (set up in a mount namespace of the claim) delays nothing else: the call to
 * connect returns at once, the connection's time-out holds, and other connections of the queue go on.
 */
#include "fab.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <netinet/in.h>
#include <sched.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>

static void put_file(const char *path, const char *text)
{
	FILE *f = fopen(path, "w");
	CHECK(f != NULL);
	CHECK(fputs(text, f) >= 0);
	CHECK_EQ(fclose(f), 0);
}

/* Replaces a file by another, for this process and its children. */
static void replace(const char *path, const char *text)
{
	char temporary[] = "/tmp/gdrfab-c-tests-XXXXXX";
	int fd = mkstemp(temporary);
	CHECK(fd >= 0);
	close(fd);
	put_file(temporary, text);
	CHECK_EQ(chmod(temporary, 0644), 0);
	if (access(path, F_OK) == 0 && mount(temporary, path, NULL, MS_BIND, NULL) != 0)
		test_skip("mounting over %s: %s", path, strerror(errno));
	unlink(temporary);
}

/* Makes the resolver use a name server that never answers; returns the server's socket. */
static int silence_names(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(53)};
	int server = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	CHECK_EQ(inet_pton(AF_INET, "127.9.9.9", &at.sin_addr), 1);
	if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL) != 0)
		test_skip("no mount namespace: %s", strerror(errno));
	if (bind(server, (struct sockaddr *)&at, sizeof at) != 0)
		test_skip("no port 53: %s", strerror(errno));
	replace("/etc/resolv.conf", "nameserver 127.9.9.9\noptions timeout:30 attempts:2\n");
	replace("/etc/nsswitch.conf", "hosts: files dns\n");
	return server;
}

static int threads(void)
{
	int count = 0;
	DIR *tasks = opendir("/proc/self/task");
	CHECK(tasks != NULL);
	for (struct dirent *task; (task = readdir(tasks));)
		count += task->d_name[0] != '.';
	closedir(tasks);
	return count;
}

/* From here on the server answers that there is no such host. Returns when no thread waits for an answer. */
static void answer_names(int server)
{
	unsigned char packet[512];
	for (int i = 0; threads() > 1; i++) {
		struct sockaddr_in from;
		socklen_t size = sizeof from;
		ssize_t len = recvfrom(server, packet, sizeof packet, MSG_DONTWAIT, (struct sockaddr *)&from, &size);
		if (len >= 12) {
			packet[2] |= 0x80, packet[3] = 3;
			sendto(server, packet, (size_t)len, 0, (struct sockaddr *)&from, size);
		} else {
			usleep(5000);
		}
		CHECK(i < 20000);
	}
	close(server);
}

enum { SECONDS = 1 };

/* One endpoint connects to a name that the server never answers; another one of the same queue connects and moves bytes. */
static void calls_by_name(struct node *n)
{
	static const char nobody[] = "tcp://no-answer.example.com:7000";
	struct eq_failure f;
	uint64_t ns = (uint64_t)SECONDS * 1000000000;
	node_open(n);
	int server = silence_names();
	gdrfab_ep *lost = ep_new(n, n->info, NULL), *closed = ep_new(n, n->info, NULL);
	OK(gdrfab_ep_setopt(lost, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_CONNECT_TIMEOUT, &ns, sizeof ns));
	barrier(n);
	uint64_t start = test_now_ms();
	OK(gdrfab_ep_connect(lost, nobody, sizeof nobody, NULL, 0));
	OK(gdrfab_ep_connect(closed, nobody, sizeof nobody, NULL, 0));
	uint64_t called = test_now_ms() - start;
	/* The resolver gives up after a minute, which does not depend on the machine. */
	if (called > 20000)
		test_fail(__FILE__, __LINE__, "the calls took %llu ms", (unsigned long long)called);
	OK(gdrfab_ep_close(closed));
	node_connect(n);
	text_both_ways(n, "meanwhile");
	EQ_FAILED(n->eq, lost, ETIMEDOUT, 40000, &f);
	uint64_t told = test_now_ms() - start;
	if (told < SECONDS * 1000 || told > 40000)
		test_fail(__FILE__, __LINE__, "told after %llu ms", (unsigned long long)told);
	if (!test_says((char *)f.data, "no-answer.example.com"))
		test_wrong(__FILE__, __LINE__, "the words do not name the host: %s", (char *)f.data);
	CHECK_EQ(f.entry.prov_errno, GDRFAB_PROV_DEADLINE);
	OK(gdrfab_ep_close(lost));
	answer_names(server);
	barrier(n);
	node_close(n);
}

static void is_called(struct node *n)
{
	node_open(n);
	node_listen(n);
	barrier(n);
	node_accept(n);
	text_both_ways(n, "meanwhile");
	barrier(n);
	node_close(n);
}

TEST_WITHIN(90, a_name_server_that_does_not_answer_holds_up_nobody)
{
	skip_unless(path_known(PATH_SOCKET), "this is about names of hosts");
	skip_if_connectionless();
	pair(NULL, is_called, calls_by_name, NULL);
}

static void connects_by_name(struct node *n)
{
	char address[GDRFAB_ADDR_MAX];
	node_open(n);
	barrier(n);
	const char *port = strrchr(n->info->dest_addr, ':');
	CHECK(port != NULL);
	snprintf(address, sizeof address, "tcp://localhost%s", port);
	n->ep = ep_new(n, n->info, n);
	OK(gdrfab_ep_connect(n->ep, address, strlen(address) + 1, NULL, 0));
	EVENT(n->eq, GDRFAB_CONNECTED, n->ep, NULL);
	text_both_ways(n, "meanwhile");
	barrier(n);
	node_close(n);
}

TEST(a_name_leads_to_its_host)
{
	skip_unless(path_known(PATH_SOCKET), "this is about names of hosts");
	skip_if_connectionless();
	if (!node_name() || strcmp(node_name(), "127.0.0.1") != 0)
		test_skip("the listener is not at 127.0.0.1");
	pair(NULL, is_called, connects_by_name, NULL);
}

TEST(a_name_that_does_not_exist_is_told_by_an_event)
{
	static const char nobody[] = "tcp://no-such-host.invalid:7000", no_port[] = "tcp://localhost";
	struct node n;
	struct eq_failure f;
	skip_unless(path_known(PATH_SOCKET), "this is about names of hosts");
	skip_if_connectionless();
	node_alone(&n, NULL);
	n.ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(gdrfab_ep_connect(n.ep, no_port, sizeof no_port, NULL, 0), -EINVAL);
	OK(gdrfab_ep_connect(n.ep, nobody, sizeof nobody, NULL, 0));
	EQ_FAILED(n.eq, n.ep, EADDRNOTAVAIL, 60000, &f);
	CHECK(test_says((char *)f.data, "no-such-host.invalid"));
	node_close(&n);
}
