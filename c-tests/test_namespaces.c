/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "test_namespaces.h"

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

static void put(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CLOEXEC);
	if (fd < 0 || write(fd, text, strlen(text)) != (ssize_t)strlen(text))
		test_skip("%s: %s", path, strerror(errno));
	close(fd);
}

/* This user is root there, and nobody else has a number. */
static void enter_user(void)
{
	char map[64];
	unsigned uid = geteuid(), gid = getegid();
	enter(CLONE_NEWUSER, "user");
	/* What a change of credentials takes away: the death of the parent is this process's, and it may be traced. */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	prctl(PR_SET_DUMPABLE, 1);
	put("/proc/self/setgroups", "deny");
	snprintf(map, sizeof map, "0 %u 1", uid);
	put("/proc/self/uid_map", map);
	snprintf(map, sizeof map, "0 %u 1", gid);
	put("/proc/self/gid_map", map);
}

/* Everything around the volume is this process's own. */
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
	/* By a descriptor of the new namespace's tree; the old one's cannot be mounted here. */
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
	/* The sockets of the claim are the child's alone. */
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
