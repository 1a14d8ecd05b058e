/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Sockets in a directory that a group may write. Another member of the group replaces a socket by a link at any moment: no file
 * of the listener's user must change its mode, and no user may be locked out for good.
 */
#include "fab.h"

#include <dirent.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <signal.h>
#include <sys/file.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>

#define OTHER_USER 12345 /* a member of the directory's group */

static char dir[] = "/tmp/gdrfab-d-XXXXXX", own[] = "/tmp/gdrfab-o-XXXXXX";
static char secret[64], address[64];

static void dirs_gone(void)
{
	char command[128];
	snprintf(command, sizeof command, "rm -rf %s %s", dir, own);
	if (system(command) != 0)
		fprintf(stderr, "%s or %s stays\n", dir, own);
}

/* Makes a directory that root and a group may write, and a file of root beside it. */
static void dirs_new(mode_t mode)
{
	skip_unless(strcmp(provider(), "shm") == 0, "this is about sockets in a directory");
	if (geteuid() != 0)
		test_skip("only root has two users");
	CHECK(mkdtemp(dir) && mkdtemp(own));
	CHECK(chown(dir, 0, OTHER_USER) == 0 && chmod(dir, mode) == 0 && chmod(own, 0755) == 0);
	snprintf(secret, sizeof secret, "%s/secret", own);
	snprintf(address, sizeof address, "shm://%s/s", dir);
	close(open(secret, O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, 0600));
	setenv("GDRFAB_SHM_USERS", "path", 1);
}

static pid_t other_user(void (*does)(void))
{
	pid_t pid = fork();
	if (pid == 0) {
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		if (setgroups(0, NULL) || setresgid(OTHER_USER, OTHER_USER, OTHER_USER) || setresuid(OTHER_USER, OTHER_USER, OTHER_USER))
			_exit(1);
		does();
		_exit(0);
	}
	CHECK(pid > 0);
	return pid;
}

static void end(pid_t pid)
{
	int status;
	kill(pid, SIGKILL);
	CHECK_EQ(waitpid(pid, &status, 0), pid);
	CHECK(WIFSIGNALED(status));
}

/* Replaces a socket by a link as soon as the socket appears. */
static void exchange_sockets(void)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (;;) {
		symlinkat(secret, at, "k");
		while (syscall(SYS_renameat2, at, "k", at, "s", RENAME_EXCHANGE) && errno == ENOENT) {
		}
		test_sleep_ms(1);
		unlinkat(at, "k", 0);
		unlinkat(at, "s", 0);
	}
}

/* Replaces each file that appears in the directory or in its subdirectories by a link. */
static void exchange_all(void)
{
	int at = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	for (unsigned turn = 0;; turn++) {
		symlinkat(turn % 3 == 2 ? own : secret, at, "l");
		DIR *all = fdopendir(openat(at, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC));
		for (struct dirent *entry; all && (entry = readdir(all));)
			if (entry->d_name[0] == '.' ? entry->d_name[1] == 'g' : strcmp(entry->d_name, "l") != 0 && strcmp(entry->d_name, "k") != 0) {
				syscall(SYS_renameat2, at, "l", at, entry->d_name, RENAME_EXCHANGE);
				unlinkat(at, entry->d_name, 0);
				if (turn % 64 == 0)
					unlinkat(at, "l", 0);
			}
		if (all)
			closedir(all);
	}
}

struct opened {
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_eq *eq;
};

static struct opened open_shm(void)
{
	static char shm[] = "shm";
	struct opened o;
	gdrfab_info *hints = gdrfab_dupinfo(NULL);
	hints->prov_name = shm;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, address, GDRFAB_SOURCE, hints, &o.info));
	gdrfab_freeinfo(hints);
	OK(gdrfab_fabric_open(o.info, NULL, &o.fabric));
	OK(gdrfab_eq_open(o.fabric, NULL, NULL, &o.eq));
	return o;
}

static void close_shm(struct opened *o)
{
	OK(gdrfab_eq_close(o->eq));
	OK(gdrfab_fabric_close(o->fabric));
	gdrfab_freeinfo(o->info);
}

static gdrfab_pep *bound_pep(struct opened *o)
{
	gdrfab_pep *pep;
	OK(gdrfab_pep_open(o->fabric, o->info, NULL, &pep));
	OK(gdrfab_pep_bind_eq(pep, o->eq, 0));
	return pep;
}

/* The number of times that listening succeeded. */
static int listen_often(int times, uint64_t limit_ms)
{
	struct opened o = open_shm();
	int went = 0;
	for (uint64_t until = test_now_ms() + limit_ms; times > 0 && test_now_ms() < until; times--) {
		gdrfab_pep *pep = bound_pep(&o);
		int rc = gdrfab_pep_listen(pep);
		went += rc == 0;
		CHECK(rc == 0 || *gdrfab_last_error());
		OK(gdrfab_pep_close(pep));
	}
	close_shm(&o);
	return went;
}

TEST_WITHIN(60, no_mode_of_a_foreign_file_changes)
{
	struct stat of_secret, of_own;

	dirs_new(0770);
	pid_t first = other_user(exchange_sockets);
	listen_often(6000, 3000);
	pid_t second = other_user(exchange_all);
	listen_often(6000, 3000);
	end(first);
	end(second);
	CHECK(stat(secret, &of_secret) == 0 && stat(own, &of_own) == 0);
	CHECK_EQ(of_secret.st_mode & 07777, 0600);
	CHECK_EQ(of_own.st_mode & 07777, 0755);
	CHECK_EQ(of_secret.st_size, 0);
	/* Without interference listening succeeds. */
	char command[128];
	snprintf(command, sizeof command, "find %s -mindepth 1 -delete", dir);
	CHECK_EQ(system(command), 0);
	CHECK_EQ(listen_often(3, 60000), 3);
	CHECK_EQ(rmdir(dir), 0);
	dirs_gone();
}

static void hold_the_lock(void)
{
	int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (fd >= 0 && flock(fd, LOCK_EX) == 0)
		for (;;)
			pause();
}

TEST_WITHIN(60, a_lock_of_another_user_keeps_nobody_out)
{
	dirs_new(0755);
	pid_t pid = other_user(hold_the_lock);
	test_sleep_ms(100);
	CHECK_EQ(listen_often(1, 60000), 1);
	end(pid);
	CHECK_EQ(rmdir(dir), 0);
	dirs_gone();
}

/* The umask of the process does not change the mode of the socket, and the directory keeps its mode. */
TEST(a_socket_has_its_mode_whatever_the_mask)
{
	struct stat st;
	char path[80];

	dirs_new(0770);
	umask(077);
	struct opened o = open_shm();
	gdrfab_pep *pep = bound_pep(&o);
	OK(gdrfab_pep_listen(pep));
	snprintf(path, sizeof path, "%s/s", dir);
	CHECK(lstat(path, &st) == 0 && S_ISSOCK(st.st_mode));
	CHECK_EQ(st.st_mode & 0777, 0666);
	OK(gdrfab_pep_close(pep));
	CHECK_EQ(rmdir(dir), 0);
	close_shm(&o);
	dirs_gone();
}
