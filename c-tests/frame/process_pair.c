/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The two processes of a claim and their out-of-band socket: see process_pair.h. */
#include "process_pair.h"

#include <errno.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

void test_pair(test_side_fn run, enum test_side victim, const void *arg)
{
	int ends[2];
	if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) < 0)
		test_fail(__FILE__, __LINE__, "socketpair: %s", strerror(errno));
	pid_t pid[TEST_SIDES] = {0};
	for (int side = TEST_SERVER; side <= TEST_CLIENT; side++) {
		pid[side] = test_fork((enum test_side)side);
		if (pid[side] == 0) {
			int mine = side == TEST_SERVER ? 0 : 1;
			close(ends[!mine]);
			run((enum test_side)side, ends[mine], arg);
			test_child_done();
		}
	}
	close(ends[0]);
	close(ends[1]);
	for (int left = 2; left > 0; left--) {
		int status;
		pid_t ended = waitpid(-1, &status, 0);
		enum test_side side = ended == pid[TEST_SERVER] ? TEST_SERVER : TEST_CLIENT;
		enum test_side other = side == TEST_SERVER ? TEST_CLIENT : TEST_SERVER;
		if (ended < 0)
			test_fail(__FILE__, __LINE__, "waitpid: %s", strerror(errno));
		bool killed = victim == side && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
		if (killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0))
			continue;
		/* The other side gets half a second to report its own failure. */
		int other_status = 0;
		for (int i = 0; left == 2 && i < 50 && waitpid(pid[other], &other_status, WNOHANG) == 0; i++)
			test_sleep_ms(10);
		test_child_ended(side, status);
	}
}

void test_oob_send(int oob, const void *data, size_t len)
{
	const char *at = (const char *)data;
	while (len > 0) {
		ssize_t sent = send(oob, at, len, MSG_NOSIGNAL);
		if (sent < 0 && errno == EINTR)
			continue;
		if (sent < 0)
			test_fail(__FILE__, __LINE__, "the other side is gone (%s)", strerror(errno));
		at += sent;
		len -= (size_t)sent;
	}
}

void test_oob_recv(int oob, void *data, size_t len, test_drive_fn drive, void *of)
{
	char *at = (char *)data;
	for (int idle = 0; len > 0; idle++) {
		ssize_t got = recv(oob, at, len, drive ? MSG_DONTWAIT : 0);
		if (got < 0 && errno == EINTR)
			continue;
		if (got < 0 && errno == EAGAIN && drive) {
			drive(of);
			/* The other side may be waiting for this CPU. */
			if (idle < 1000)
				sched_yield();
			else
				usleep(50);
			continue;
		}
		if (got <= 0)
			test_fail(__FILE__, __LINE__, "the other side is gone (%s)",
				  got < 0 ? strerror(errno) : "it closed its end");
		at += got;
		len -= (size_t)got;
	}
}

pid_t test_oob_peer(int oob)
{
	pid_t me = getpid(), peer;
	test_oob_send(oob, &me, sizeof me);
	test_oob_recv(oob, &peer, sizeof peer, NULL, NULL);
	return peer;
}

void test_await_gone(int oob)
{
	char word;
	ssize_t got;
	while ((got = recv(oob, &word, 1, 0)) > 0 || (got < 0 && errno == EINTR))
		;
}

void test_barrier(int oob, test_drive_fn drive, void *of)
{
	char word = 'b';
	test_oob_send(oob, &word, 1);
	test_oob_recv(oob, &word, 1, drive, of);
	if (word != 'b')
		test_fail(__FILE__, __LINE__, "the two sides are out of step (got 0x%02x)", (unsigned char)word);
}

const char *test_enter_netns(void)
{
	const char *path = getenv("TEST_CLIENT_NETNS"), *node = getenv("TEST_CLIENT_NODE");
	if (!path || !*path)
		return NULL;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0 || setns(fd, CLONE_NEWNET) != 0)
		test_fail(__FILE__, __LINE__, "TEST_CLIENT_NETNS=%s: %s", path, strerror(errno));
	close(fd);
	return node && *node ? node : NULL;
}
