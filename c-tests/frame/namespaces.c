/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Namespaces for one side of a claim: see namespaces.h. */
#include "namespaces.h"

#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>

static void enter(int kind, const char *word)
{
	if (unshare(kind) != 0)
		test_skip("no %s namespace of one's own: %s", word, strerror(errno));
}

static bool try_put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	bool put = fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text);
	if (fd >= 0)
		close(fd);
	return put;
}

static void put(const char *path, const char *text)
{
	if (!try_put(path, text))
		test_skip("%s: %s", path, strerror(errno));
}

/* Forks a process that stays outside of the user namespace which its parent enters, and writes the parent's uid_map and
 * gid_map once told so by a byte in *go. */
static pid_t mapper_start(int *go)
{
	static const char *const all = "0 0 65536";
	char path[64], word;
	int ends[2];
	CHECK_EQ(pipe2(ends, O_CLOEXEC), 0);
	fflush(NULL);
	pid_t of = getpid(), mapper = fork();
	CHECK(mapper >= 0);
	if (mapper == 0) {
		close(ends[1]);
		if (read(ends[0], &word, 1) != 1)
			_exit(1);
		snprintf(path, sizeof path, "/proc/%d/uid_map", of);
		bool users = try_put(path, all);
		snprintf(path, sizeof path, "/proc/%d/gid_map", of);
		_exit(users && try_put(path, all) ? 0 : 1);
	}
	close(ends[0]);
	*go = ends[1];
	return mapper;
}

/* If this user is root, all users keep their numbers in the new namespace. Else this user is root there, and is its only
 * user. */
static void enter_user(void)
{
	char map[64];
	unsigned uid = geteuid(), gid = getegid();
	int go = -1, status = 1;
	pid_t mapper = uid ? 0 : mapper_start(&go);
	enter(CLONE_NEWUSER, "user");
	/* A change of credentials clears both: dying with the parent, and being traceable. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 1);
	if (mapper) {
		CHECK_EQ(write(go, "g", 1), 1);
		CHECK_EQ(waitpid(mapper, &status, 0), mapper);
		close(go);
		if (status == 0)
			return;
	}
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 %u 1", uid);
	put("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "0 %u 1", gid);
	put("/proc/self/gid_map", map);
}

/* The parent directory of the volume becomes a tmpfs of this process; the volume itself stays shared. */
static void enter_mount(void)
{
	const char *volume = getenv("TEST_VOLUME");
	char parent[256];
	CHECK(volume && strlen(volume) < sizeof parent);
	snprintf(parent, sizeof parent, "%s", volume);
	*strrchr(parent, '/') = '\0';
	int held = open(volume, O_PATH | O_CLOEXEC);
	CHECK(held >= 0);
	enter(CLONE_NEWNS, "mount");
	char from[64];
	OK(mount("none", "/", NULL, MS_REC | MS_PRIVATE, NULL));
	/* The bind mount needs a descriptor of the new namespace's tree: the old one cannot be mounted here. */
	close(held);
	held = open(volume, O_PATH | O_CLOEXEC);
	snprintf(from, sizeof from, "/proc/self/fd/%d", held);
	OK(mount("tmpfs", parent, "tmpfs", 0, "mode=700"));
	OK(mkdir(volume, 0700));
	if (mount(from, volume, NULL, MS_BIND, NULL) != 0)
		test_fail(__FILE__, __LINE__, "binding the volume: %s", strerror(errno));
	close(held);
}

static void enter_pid(void)
{
	enter(CLONE_NEWPID, "pid");
	fflush(NULL);
	pid_t child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		prctl(PR_SET_PTRACER, PR_SET_PTRACER_ANY, 0, 0, 0);
		return;
	}
	int status = 0;
	/* Only the child may hold the claim's sockets, or the other side would not see them close. */
	for (int fd = 3; fd < 256; fd++)
		close(fd);
	while (waitpid(child, &status, 0) < 0 && errno == EINTR)
		;
	if (WIFSIGNALED(status)) {
		signal(WTERMSIG(status), SIG_DFL);
		kill(getpid(), WTERMSIG(status));
	}
	_exit(WIFEXITED(status) ? WEXITSTATUS(status) : 1);
}

void test_enter_namespaces(const char *words)
{
	if (!words || !*words)
		return;
	if (strstr(words, "user"))
		enter_user();
	if (strstr(words, "net"))
		enter(CLONE_NEWNET, "network");
	if (strstr(words, "ipc"))
		enter(CLONE_NEWIPC, "ipc");
	if (strstr(words, "mount"))
		enter_mount();
	if (strstr(words, "pid"))
		enter_pid();
}
