/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Containers of one host that share a directory with the sockets, and perhaps no namespace: the paths that they have, the users
 * that a listener accepts, and other files at the path of a socket. tests/check-containers.sh runs this and other programs with
 * the client or both sides in namespaces of their own (TEST_CLIENT_NAMESPACES, TEST_SERVER_NAMESPACES) and with sockets in a
 * directory (TEST_VOLUME, GDRFAB_SHM_DIR).
 */
#include "fab.h"
#include "fab_rdm.h"
#include "namespaces.h"
#include "process_pair.h"

#include <ctype.h>
#include <fcntl.h>
#include <sched.h>
#include <sys/mman.h>
#include <sys/mount.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>

#define LEN ((size_t)200000)
#define OTHER_USER 12345 /* a user that owns nothing */
#define THIRD_USER "54321" /* a user without any process */

/* A directory of this claim, removed at its end. */
static char dir[] = "/tmp/gdrfab-c-XXXXXX";

static void dir_gone(void)
{
	char command[64];
	snprintf(command, sizeof command, "rm -rf %s", dir);
	if (system(command) != 0)
		fprintf(stderr, "%s stays\n", dir);
}

static void dir_new(mode_t mode)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	CHECK(mkdtemp(dir) != NULL);
	CHECK_EQ(chmod(dir, mode), 0);
}

/* True if the sides are in different namespaces of this kind. */
static bool differ_in(const char *word)
{
	const char *client = getenv("TEST_CLIENT_NAMESPACES"), *server = getenv("TEST_SERVER_NAMESPACES");
	return (client && strstr(client, word)) || (server && strstr(server, word));
}

/* The kernel does not tell the network namespace of another user's process. */
static bool network_is_told(struct node *n)
{
	char path[64], where[64];
	snprintf(path, sizeof path, "/proc/%d/ns/net", n->peer);
	return readlink(path, where, sizeof where) > 0;
}

/* ---- paths */

static void owns(struct node *n)
{
	struct mem shared, own;
	node_up(n);
	mem_new(n, &shared, &memkinds[KIND_MEM_ALLOC], LEN);
	mem_new(n, &own, &memkinds[KIND_MALLOC], LEN);
	/* A memory checker does not see what another process writes. */
	memset(own.addr, 0, LEN);
	mem_register(n, &shared, 0, LEN, ANY_ACCESS, 0);
	mem_register(n, &own, 0, LEN, ANY_ACCESS, 0);
	mem_publish(n, &shared);
	mem_publish(n, &own);
	barrier(n);
	CHECK_MEM("mem_alloc", &shared, 0, LEN, 0, 1);
	CHECK_MEM("malloc", &own, 0, LEN, 0, 2);
	mem_end(n, &shared);
	mem_end(n, &own);
	node_down(n);
}

static void reaches(struct node *n)
{
	static unsigned char bytes[LEN];
	char words[2048];
	node_up(n);
	struct remote to[2] = {mem_fetch(n), mem_fetch(n)};
	for (uint32_t i = 0; i < 2; i++) {
		fill(bytes, LEN, 0, i + 1);
		POST(n->cq, gdrfab_write(n->ep, bytes, LEN, NULL, 0, to[i].base, to[i].key, n));
		DONE(n->cq, n, 0, NULL);
		memset(bytes, 0, LEN);
		POST(n->cq, gdrfab_read(n->ep, bytes, LEN, NULL, 0, to[i].base, to[i].key, n));
		DONE(n->cq, n, 0, NULL);
		CHECK_FILLED("what was read", bytes, LEN, 0, i + 1);
		gdrfab_path_info info = {0};
		info.struct_size = sizeof info;
		OK(gdrfab_ep_query(n->ep, 0, to[i].key, &info));
		CHECK(gdrfab_ep_explain(n->ep, 0, to[i].key, words, sizeof words) > 0);
		/* The file is sent by descriptor, which needs no permission to trace. */
		if (i == 0)
			CHECK_EQ(info.path, GDRFAB_PATH_DIRECT);
		if (i == 1 && (differ_in("pid") || differ_in("user"))) {
			CHECK_EQ(info.path, GDRFAB_PATH_STAGED);
			CHECK(info.reasons[PATH_CMA] != 0);
			SAYS(words, differ_in("pid") ? "another pid namespace" : "trace the peer");
		}
		if (!differ_in("pid") && differ_in("net") && network_is_told(n))
			SAYS(words, "net namespace");
	}
	barrier(n);
	node_down(n);
}

TEST(memory_files_are_mapped_and_what_is_refused_has_a_reason)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	pair(NULL, owns, reaches, NULL);
}

/* ---- the users that a listener accepts */

struct policy {
	const char *users;
	mode_t mode;
	int err; /* of the connection; 0: it works */
	const char *word;
};

static void hears_callers(void *of)
{
	uint32_t event;
	gdrfab_eq_cm_entry entry;
	CHECK_EQ(gdrfab_eq_read(((struct node *)of)->eq, &event, &entry, sizeof entry, 0), -EAGAIN);
}

static void lets_in(struct node *n)
{
	const struct policy *p = (const struct policy *)n->arg;
	snprintf(n->service, sizeof n->service, "%s/s", dir);
	setenv("GDRFAB_SHM_USERS", p->users, 1);
	if (p->err) {
		node_open(n);
		node_listen(n);
		barrier(n);
		test_barrier(n->oob, hears_callers, n);
		node_down(n);
		return;
	}
	owns(n);
}

static void comes(struct node *n)
{
	const struct policy *p = (const struct policy *)n->arg;
	struct eq_failure f;
	char users[16];
	snprintf(n->service, sizeof n->service, "%s/s", dir);
	/* The other side is accepted, whichever other users are. */
	snprintf(users, sizeof users, "%s", isdigit((unsigned char)*p->users) ? "0" : p->users);
	setenv("GDRFAB_SHM_USERS", users, 1);
	if (setresuid(OTHER_USER, OTHER_USER, OTHER_USER) != 0)
		test_skip("user %d: %s", OTHER_USER, strerror(errno));
	if (!p->err) {
		reaches(n);
		return;
	}
	node_open(n);
	barrier(n);
	n->ep = ep_new(n, n->info, n);
	int rc = gdrfab_ep_connect(n->ep, n->info->dest_addr, n->info->dest_addrlen, NULL, 0);
	if (rc == 0) {
		EQ_FAILED(n->eq, n->ep, p->err, 3000, &f);
		SAYS((const char *)f.data, p->word);
	} else {
		CHECK_EQ(rc, -p->err);
		SAYS(gdrfab_last_error(), p->word);
	}
	barrier(n);
	node_down(n);
}

static void admission(const struct policy *p)
{
	if (geteuid() != 0)
		test_skip("only root has two users");
	dir_new(p->mode);
	pair(NULL, lets_in, comes, p);
	dir_gone();
}

TEST(another_user_is_turned_away)
{
	/* Refused by the mode of the socket's file, which is 0600. */
	static const struct policy same = {"same", 0755, EACCES, "Permission denied"};
	admission(&same);
}

TEST(a_user_of_the_list_connects)
{
	static const struct policy list = {"12345", 0755, 0, NULL};
	admission(&list);
}

TEST(a_user_whom_the_list_lacks_is_told_so)
{
	static const struct policy list = {THIRD_USER, 0755, EACCES, "GDRFAB_SHM_USERS"};
	admission(&list);
}

TEST(a_user_who_may_open_the_path_connects)
{
	static const struct policy path = {"path", 0755, 0, NULL};
	admission(&path);
}

TEST(a_user_who_may_not_open_the_directory_does_not)
{
	static const struct policy path = {"path", 0700, EACCES, "Permission denied"};
	admission(&path);
}

/* ---- other files at the path of a socket */

static int listens(struct node *n, const char *path)
{
	gdrfab_info *hints = hints_new(n->setup), *info = NULL;
	gdrfab_pep *pep = NULL;
	int rc = provider_getinfo(path, GDRFAB_SOURCE, hints, &info);
	gdrfab_freeinfo(hints);
	if (rc)
		return rc;
	OK(gdrfab_pep_open(n->fabric, info, n, &pep));
	OK(gdrfab_pep_bind_eq(pep, n->eq, 0));
	rc = gdrfab_pep_listen(pep);
	gdrfab_freeinfo(info);
	/* The error text survives the close, which sets none. */
	OK(gdrfab_pep_close(pep));
	return rc;
}

static void alone(struct node *n)
{
	static const struct setup defaults;
	memset(n, 0, sizeof *n);
	node_alone(n, &defaults);
}

/* ---- without /proc */

/* The host, as the name of an endpoint contains it. */
static void is_refused(const char *name, const char *word)
{
	struct node n;
	alone(&n);
	gdrfab_ep *ep = ep_new(&n, n.info, NULL);
	CHECK_EQ(gdrfab_ep_connect(ep, name, strlen(name) + 1, NULL, 0), -EHOSTUNREACH);
	SAYS(gdrfab_last_error(), word);
	OK(gdrfab_ep_close(ep));
	node_close(&n);
}

TEST(names_of_other_hosts_are_told)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	is_refused("shm://@00000001.1.0", "another host");
	/* The name that a process without /proc has. */
	is_refused("shm://@811c9dc5.1.0", "boot_id");
}

TEST(who_cannot_know_its_host_is_told_so)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	skip_unless(geteuid() == 0, "only root hides /proc");
	CHECK_EQ(unshare(CLONE_NEWNS), 0);
	CHECK_EQ(mount("none", "/", "none", MS_REC | MS_PRIVATE, NULL), 0);
	CHECK_EQ(mount("none", "/proc", "tmpfs", 0, NULL), 0);
	is_refused("shm://@00000001.1.0", "boot_id");
	CHECK_EQ(umount("/proc"), 0);
}

static int socket_at(const char *path, bool listening)
{
	struct sockaddr_un at = {.sun_family = AF_UNIX};
	int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
	snprintf(at.sun_path, sizeof at.sun_path, "%s", path);
	CHECK_EQ(bind(fd, (struct sockaddr *)&at, sizeof at), 0);
	if (listening)
		CHECK_EQ(listen(fd, 1), 0);
	else
		CHECK_EQ(close(fd), 0);
	return fd;
}

TEST(only_a_dead_socket_of_this_user_makes_room)
{
	struct node n;
	char path[64], real[64];
	struct stat st;
	dir_new(0700);
	alone(&n);
	snprintf(path, sizeof path, "%s/s", dir);
	snprintf(real, sizeof real, "%s/real", dir);

	OK(listens(&n, path));
	CHECK(lstat(path, &st) != 0 && errno == ENOENT);
	socket_at(path, false);
	OK(listens(&n, path));
	int other = socket_at(path, true);
	CHECK_EQ(listens(&n, path), -EADDRINUSE);
	CHECK_EQ(lstat(path, &st), 0);
	CHECK_EQ(unlink(path), 0);
	CHECK_EQ(close(other), 0);
	socket_at(real, false);
	CHECK_EQ(symlink(real, path), 0);
	CHECK_EQ(listens(&n, path), -EADDRINUSE);
	CHECK(lstat(path, &st) == 0 && S_ISLNK(st.st_mode) && lstat(real, &st) == 0);
	CHECK_EQ(unlink(path), 0);
	CHECK(mkdir(path, 0700) == 0);
	CHECK_EQ(listens(&n, path), -EADDRINUSE);
	CHECK_EQ(rmdir(path), 0);
	if (geteuid() == 0) {
		socket_at(path, false);
		CHECK_EQ(chown(path, OTHER_USER, OTHER_USER), 0);
		CHECK_EQ(listens(&n, path), -EADDRINUSE);
		CHECK(lstat(path, &st) == 0 && st.st_uid == OTHER_USER);
	}
	node_close(&n);
	dir_gone();
}

TEST(paths_that_cannot_be_are_told)
{
	struct node n;
	char path[200];
	dir_new(0700);
	alone(&n);
	snprintf(path, sizeof path, "%s/%0150d", dir, 0);
	CHECK(listens(&n, path) < 0);
	SAYS(gdrfab_last_error(), "100");
	snprintf(path, sizeof path, "%s/", dir);
	CHECK(listens(&n, path) < 0);
	SAYS(gdrfab_last_error(), "directory");
	snprintf(path, sizeof path, "%s/none/s", dir);
	CHECK_EQ(listens(&n, path), -ENOENT);
	node_close(&n);
	dir_gone();
}

static void in_the_open(const void *arg)
{
	struct node n;
	char path[64];
	(void)arg;
	dir_new(01777);
	/* A directory that everybody may write cannot decide which users are accepted ("path"): listening is refused. */
	setenv("GDRFAB_SHM_USERS", "path", 1);
	alone(&n);
	snprintf(path, sizeof path, "%s/s", dir);
	CHECK_EQ(listens(&n, path), -EACCES);
	node_close(&n);
	dir_gone();
}

TEST(a_directory_of_everybody_lets_nobody_in_by_path)
{
	in_the_open(NULL);
}

/* ---- connectionless endpoints */

#define HERE "10.88.0.1"

/* Opens an endpoint and exchanges names: index 0 is the server. */
static void open_composite(struct self *s, enum test_side side, int oob, const char *service)
{
	unsigned char names[2][NAME];
	size_t len = NAME;
	s->lanes = "shm+tcp", s->rank = side == TEST_CLIENT, s->count = 2;
	open_ep(s, service);
	OK(gdrfab_ep_getname(s->ep, names[s->rank], &len));
	test_oob_send(oob, names[s->rank], NAME);
	test_oob_recv(oob, names[!s->rank], NAME, NULL, NULL);
	CHECK_EQ(gdrfab_av_insert(s->av, names, 2, NULL, 0, NULL), 2);
}

static void is_over_tcp(struct self *s, const char *why)
{
	char words[2048];
	CHECK(gdrfab_ep_explain(s->ep, (uint64_t)!s->rank, 0, words, sizeof words) > 0);
	SAYS(words, "over tcp");
	SAYS(words, why);
}

static void rdm_in_two_networks(enum test_side side, int oob, const void *arg)
{
	static struct self s;
	unsigned char in = 0, out = 7;
	(void)arg;
	/* As in another network namespace: its local sockets are in another directory. */
	if (side == TEST_SERVER)
		setenv("GDRFAB_SHM_DIR", dir, 1);
	else
		unsetenv("GDRFAB_SHM_DIR");
	open_composite(&s, side, oob, "rdm://" HERE ":0");
	trecv(&s, GDRFAB_ADDR_UNSPEC, &in, 1, 5, 0, 1);
	tsend(&s, !s.rank, &out, 1, 5, 2);
	await(&s, 1, NULL);
	await(&s, 2, NULL);
	CHECK_EQ(in, 7);
	is_over_tcp(&s, "another network namespace");
	test_barrier(oob, (test_drive_fn)drive, &s);
	close_ep(&s);
}

TEST(the_composite_takes_tcp_where_shm_does_not_reach_and_says_so)
{
	dir_new(0700);
	if (geteuid() == 0)
		CHECK_EQ(unshare(CLONE_NEWNET), 0);
	else
		test_enter_namespaces("user net");
	if (system("ip link set lo up && ip addr add " HERE "/32 dev lo") != 0)
		test_skip("no address for the loopback of a namespace");
	test_pair(rdm_in_two_networks, TEST_REFEREE, NULL);
	dir_gone();
}

/* The server accepts neither the client's user nor unknown users; the client would accept the server. */
static void rdm_of_two_users(enum test_side side, int oob, const void *arg)
{
	static struct self s;
	unsigned char in = 0, out = 7;
	(void)arg;
	setenv("GDRFAB_SHM_USERS", side == TEST_SERVER ? THIRD_USER : "0", 1);
	/* Names that any user may connect to. */
	unsetenv("GDRFAB_SHM_DIR");
	if (side == TEST_CLIENT)
		CHECK_EQ(setresuid(OTHER_USER, OTHER_USER, OTHER_USER), 0);
	open_composite(&s, side, oob, NULL);
	if (side == TEST_SERVER) {
		trecv(&s, GDRFAB_ADDR_UNSPEC, &in, 1, 5, 0, 1);
		await(&s, 1, NULL);
		CHECK_EQ(in, 7);
	} else {
		uint64_t begun = test_now_ms();
		tsend(&s, 0, &out, 1, 5, 2);
		await(&s, 2, NULL);
		/* Half of the time for which it would retry a listener that has no room. */
		CHECK(test_now_ms() - begun < (uint64_t)test_ms(5000));
	}
	is_over_tcp(&s, side == TEST_CLIENT ? "GDRFAB_SHM_USERS" : "the peer who called");
	test_barrier(oob, (test_drive_fn)drive, &s);
	close_ep(&s);
}

TEST(the_composite_takes_tcp_where_shm_lets_its_user_not_in_and_says_so)
{
	skip_unless(path_known(PATH_DIRECT), "this is about shm");
	if (geteuid() != 0)
		test_skip("only root has two users");
	test_pair(rdm_of_two_users, TEST_REFEREE, NULL);
}
