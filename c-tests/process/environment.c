/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The environment: invalid values, privileged programs that must ignore variables, and a log that cannot be written. */
#include "fab.h"

#include <fcntl.h>
#include <grp.h>
#include <sys/auxv.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <sys/xattr.h>

enum { NOBODY = 65534, NAMES = 128, NOT_RUN = 127 };

/* Bits of a probe's exit status: its findings. */
enum { SECURE = 1, REFUSED = 2, LOADED = 4 };

static bool is_mapped(const char *what)
{
	char line[512];
	bool found = false;
	FILE *maps = fopen("/proc/self/maps", "r");

	while (maps && fgets(line, sizeof line, maps))
		found |= strstr(line, what) != NULL;
	if (maps)
		fclose(maps);
	return found;
}

/* This program again, with other rights: "--probe" and the name of a library that it should not open. */
__attribute__((constructor)) static void probe(int argc, char **argv)
{
	gdrfab_info *info = NULL;
	int found = 0;

	if (argc != 3 || strcmp(argv[1], "--probe") != 0)
		return;
	if (gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info) == -EINVAL)
		found |= REFUSED;
	gdrfab_freeinfo(info);
	found |= (is_mapped(argv[2]) ? LOADED : 0) | (getauxval(AT_SECURE) ? SECURE : 0);
	_exit(found);
}

/* The names of the variables that do not take any text, as gdrfab-info lists them. */
static int names_of_variables(char names[][64])
{
	const char *prefix = getenv("PREFIX");
	char command[512], line[512], name[64] = "";
	int n = 0;

	snprintf(command, sizeof command, "%s/bin/gdrfab-info -e", prefix ? prefix : "/usr/local");
	if (!prefix || access(strtok(strcpy(line, command), " "), X_OK) != 0)
		test_skip("PREFIX does not say where gdrfab-info is");
	FILE *list = popen(command, "r");
	CHECK(list);
	while (fgets(line, sizeof line, list)) {
		char *now = strstr(line, "; now ");
		if (strncmp(line, "GDRFAB_", 7) == 0)
			sscanf(line, "%63s", name);
		else if (now && strchr(now + 6, ';') && n < NAMES)
			memcpy(names[n++], name, sizeof name);
	}
	pclose(list);
	return n;
}

static int exit_status(pid_t child)
{
	int status;

	CHECK_EQ(waitpid(child, &status, 0), child);
	if (!WIFEXITED(status))
		test_fail(__FILE__, __LINE__, "a child was ended by signal %d", WTERMSIG(status));
	return WEXITSTATUS(status);
}

static void getinfo_refuses(const char *name, const char *value)
{
	gdrfab_info *info = NULL;
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		setenv(name, value, 1);
		int rc = gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info);
		const char *words = gdrfab_last_error();
		if (rc != -EINVAL || !strstr(words, name) || !strstr(words, value)) {
			printf("%s=%s: getinfo is %d: %s\n", name, value, rc, words);
			fflush(stdout);
			_exit(1);
		}
		_exit(0);
	}
	if (exit_status(child))
		test_wrong(__FILE__, __LINE__, "%s=%s is not refused with words", name, value);
}

TEST(values_that_a_variable_cannot_have_are_refused)
{
	static char names[NAMES][64];
	static const char *const others[][2] = {
		{"GDRFAB_DEBUG", "ring-slots=300"},  {"GDRFAB_DEBUG", "desc,ring-slots=128"}, {"GDRFAB_SHM_EAGER_MAX", "8193"},
		{"GDRFAB_PATHS", "direct,warp"},     {"GDRFAB_HMEM", "cuda,qpu"},      {"GDRFAB_TCP_BUFFER", "100"},
		{"GDRFAB_DEBUG", "1"},		     {"GDRFAB_DEBUG", "desc=1"},       {"GDRFAB_HMEM_DRIVER", "caller,thread"},
		{"GDRFAB_VERBS_MTU", "1500"},	     {"GDRFAB_FAULT", "mangle=1"},     {"GDRFAB_PROVIDER", "udp"},
		{"GDRFAB_SPIN_US", "-1"},	     {"GDRFAB_SPIN_US", "1000001"},    {"GDRFAB_LOG", "5"},
		{"GDRFAB_HMEM", "none,cuda"},
	};
	int n = names_of_variables(names);

	CHECK(n > 15);
	/* Starting a process takes a memory checker long: it tries only some of the variables. */
	for (int i = 0; i < n; i += test_checked() ? 8 : 1)
		getinfo_refuses(names[i], "nonsense");
	for (size_t i = 0; i < sizeof others / sizeof *others; i += test_checked() ? 2 : 1)
		getinfo_refuses(others[i][0], others[i][1]);
	/* An empty variable counts as unset, and variables of others are ignored. */
	gdrfab_info *info;
	setenv("GDRFAB_SPIN_US", "", 1);
	setenv("GDRFAB_NO_SUCH_VARIABLE", "nonsense", 1);
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info));
	gdrfab_freeinfo(info);
}

TEST(variables_of_earlier_versions_name_their_successors)
{
	static const char *const removed[][3] = {
		{"GDRFAB_SHM_PATHS", "staged", "instead there is GDRFAB_PATHS"},
		{"GDRFAB_HMEM_INIT", "0", "instead there is GDRFAB_HMEM_DRIVER=adopt"},
		{"GDRFAB_TCP_WINDOW", "1", "instead there is GDRFAB_DEBUG=tcp-window=N"},
		{"GDRFAB_VERBS_TX_SIZE", "64", "instead there is tx_size of the info or the hints"},
	};
	gdrfab_info *info;

	for (size_t i = 0; i < sizeof removed / sizeof *removed; i++) {
		setenv(removed[i][0], removed[i][1], 1);
		CHECK_EQ(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, NULL, &info), -EINVAL);
		SAYS(gdrfab_last_error(), removed[i][0]);
		SAYS(gdrfab_last_error(), removed[i][2]);
		unsetenv(removed[i][0]);
	}
}

TEST(a_provider_without_a_permitted_path_is_not_offered)
{
	gdrfab_info *info, *at;
	int found = 0;

	setenv("GDRFAB_PATHS", "socket", 1);
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, GDRFAB_GETINFO_ALL, NULL, &info));
	for (at = info; at; at = at->next) {
		if (strcmp(at->prov_name, "tcp") == 0)
			CHECK_EQ(at->paths, GDRFAB_PATH_SOCKET);
		if (strcmp(at->prov_name, "shm") != 0)
			continue;
		found++;
		CHECK_EQ(at->reason_errno, ENODATA);
		SAYS(at->reason, "GDRFAB_PATHS rules out all paths of this provider");
	}
	CHECK(found > 0);
	gdrfab_freeinfo(info);
}

static void copy_file(const char *from, const char *to, mode_t mode)
{
	static char block[65536];
	int in = open(from, O_RDONLY | O_CLOEXEC), out = open(to, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0700);
	ssize_t n;

	CHECK(in >= 0 && out >= 0);
	while ((n = read(in, block, sizeof block)) > 0)
		CHECK_EQ(write(out, block, (size_t)n), n);
	CHECK_EQ(n, 0);
	CHECK_EQ(fchmod(out, mode), 0);
	close(in);
	close(out);
}

/* The exit status of a probe by a user without rights, with these variables. */
static int run_probe(const char *program, char **variables)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		char *arguments[] = {(char *)program, (char *)"--probe", (char *)"named.so", NULL};
		if (setgroups(0, NULL) || setgid(NOBODY) || setuid(NOBODY))
			_exit(NOT_RUN);
		execve(program, arguments, variables);
		_exit(NOT_RUN);
	}
	return exit_status(child);
}

static char directory[] = "/var/tmp/gdrfab-environment-XXXXXX";

static void path_in(char *to, size_t size, const char *name)
{
	snprintf(to, size, "%s/%s", directory, name);
}

static void clean_up(void)
{
	static const char *const names[] = {"plain", "user", "group", "capability", "named.so"};
	char path[128];

	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		path_in(path, sizeof path, names[i]), unlink(path);
	rmdir(directory);
}

/* The path of a library that exists, as a value for variables. */
static void find_library(char *to, size_t size)
{
	char line[512];
	FILE *maps = fopen("/proc/self/maps", "r");

	CHECK(maps);
	to[0] = 0;
	while (fgets(line, sizeof line, maps)) {
		char *path = strchr(line, '/');
		if (path && strstr(path, "libgcc_s.so")) {
			path[strcspn(path, "\n")] = 0;
			snprintf(to, size, "%s", path);
		}
	}
	fclose(maps);
}

TEST(a_program_with_rights_of_its_own_trusts_no_variable)
{
	char programs[4][128], library[512], named[128], variable[160], spin[] = "GDRFAB_SPIN_US=nonsense", log[] = "GDRFAB_LOG=debug";
	char *bad[] = {spin, NULL}, *good[] = {log, variable, NULL};
	/* struct vfs_cap_data: version 2, effective; CAP_NET_BIND_SERVICE is permitted. */
	const uint32_t capability[] = {0x02000001, 1u << 10, 0, 0, 0};

	if (geteuid() != 0)
		test_skip("only root makes set-uid programs");
	if (!test_count(1, 0))
		test_skip("TEST_FAST: under a checker the program is the checker's");
	find_library(library, sizeof library);
	if (!library[0])
		test_skip("no library to name");
	if (!mkdtemp(directory))
		test_skip("%s: %s", directory, strerror(errno));
	atexit(clean_up);
	CHECK_EQ(chmod(directory, 0755), 0);
	path_in(named, sizeof named, "named.so");
	copy_file(library, named, 0755);
	snprintf(variable, sizeof variable, "GDRFAB_DEBUG=ibverbs=%s", named);
	static const char *const names[] = {"plain", "user", "group", "capability"};
	for (int i = 0; i < 4; i++) {
		path_in(programs[i], sizeof programs[i], names[i]);
		copy_file("/proc/self/exe", programs[i], i == 1 ? 04755 : i == 2 ? 02755 : 0755);
	}
	if (setxattr(programs[3], "security.capability", capability, sizeof capability, 0))
		test_skip("no file capabilities: %s", strerror(errno));
	/* Without privileges the probe does use the variables. */
	int plain = run_probe(programs[0], bad);
	if (plain == NOT_RUN)
		test_skip("the program cannot be run from there: no library in its path");
	CHECK_EQ(plain, REFUSED);
	int loads = run_probe(programs[0], good);
	for (int i = 1; i < 4; i++) {
		int found = run_probe(programs[i], bad);
		if (!(found & SECURE))
			test_skip("%s: no such rights here (nosuid)", programs[i]);
		CHECK_EQ(found, SECURE);
		CHECK_EQ(run_probe(programs[i], good), SECURE);
	}
	if (loads != LOADED)
		test_skip("this build has no verbs: nothing to load");
}

/* Makes a failing call with the log on, in a child whose stderr is fd. */
static void log_to(int fd)
{
	pid_t child = fork();

	CHECK(child >= 0);
	if (child == 0) {
		dup2(fd, 2);
		setenv("GDRFAB_LOG", "debug", 1);
		_exit(gdrfab_mr_close(NULL) == -EINVAL && gdrfab_ep_close(NULL) == -EINVAL ? 0 : 1);
	}
	CHECK_EQ(exit_status(child), 0);
}

TEST(a_log_that_cannot_be_written_is_lost)
{
	int full = open("/dev/full", O_WRONLY | O_CLOEXEC), only_read = open("/dev/null", O_RDONLY | O_CLOEXEC);

	CHECK(full >= 0 && only_read >= 0);
	log_to(full);
	log_to(only_read);
}

/* The text of a log line, behind its time, process and level. */
static const char *log_words(const char *line, char level[16])
{
	int year, month, day, hour, minute, pid, at = 0;
	double second;

	int n = sscanf(line, "%d-%d-%dT%d:%d:%lfZ gdrfab[%d] %15[a-z]: %n", &year, &month, &day, &hour, &minute, &second, &pid, level, &at);
	return n == 8 && at > 0 ? line + at : NULL;
}

TEST(log_lines_say_when_who_and_how_bad)
{
	int fd = memfd_create("log", MFD_CLOEXEC);
	char text[1024] = "", level[16];

	CHECK(fd >= 0);
	log_to(fd);
	CHECK(pread(fd, text, sizeof text - 1, 0) > 0);
	if (!log_words(text, level) || strcmp(level, "debug") != 0)
		test_fail(__FILE__, __LINE__, "a line of the log is: %s", text);
}

/* --- a connection's life --- */

static int logs[TEST_SIDES];

static void logged_server(struct node *n)
{
	struct mem m;

	dup2(logs[TEST_SERVER], 2);
	node_up(n);
	mem_new(n, &m, &memkinds[KIND_MEM_ALLOC], 4096);
	mem_register(n, &m, 0, 4096, REMOTE_ACCESS, 0);
	mem_publish(n, &m);
	barrier(n);
	EVENT(n->eq, GDRFAB_SHUTDOWN, n->ep, NULL);
	mem_end(n, &m);
	node_down(n);
}

static void logged_client(struct node *n)
{
	static char bytes[64];

	dup2(logs[TEST_CLIENT], 2);
	node_up(n);
	struct remote r = mem_fetch(n);
	OK(gdrfab_write(n->ep, bytes, sizeof bytes, local_desc(n, bytes, sizeof bytes), 0, r.base, r.key, bytes));
	DONE(n->cq, bytes, 0, NULL);
	barrier(n);
	OK(gdrfab_ep_shutdown(n->ep, 0));
	node_down(n);
}

/* The log lines of a connection, in order: each has a level and words that it must contain. */
static void expect_lines(enum test_side side, const char *const (*want)[3])
{
	static char text[1 << 16];
	char level[16];
	ssize_t len = pread(logs[side], text, sizeof text - 1, 0);

	CHECK(len > 0);
	text[len] = 0;
	for (char *line = strtok(text, "\n"); line; line = strtok(NULL, "\n")) {
		const char *words = log_words(line, level);
		if (!words)
			test_fail(__FILE__, __LINE__, "a line of the log is: %s", line);
		while ((*want)[0] && !(*want)[1][0])
			want++;
		if ((*want)[0] && strcmp(level, (*want)[0]) == 0 && strstr(words, (*want)[1]) && strstr(words, (*want)[2]))
			want++;
	}
	if ((*want)[0]) {
		ssize_t all = pread(logs[side], text, sizeof text - 1, 0);
		text[all > 0 ? all : 0] = 0;
		test_fail(__FILE__, __LINE__, "no line with '%s' and '%s' in its place in:\n%s", (*want)[1], (*want)[2], text);
	}
}

TEST(the_log_tells_a_connections_life)
{
	const char *scheme = traits()->scheme;
	const char *const server[][3] = {
		{"debug", ": listens on ", scheme},  {"debug", "connection request from", scheme},   {"debug", ": accepting", "ep 0x"},
		{"debug", ": connected to ", scheme}, {"info", " is over: ", "the connection to "}, {"debug", ": closed", "ep 0x"},
		{NULL, NULL, NULL},
	};
	const char *const client[][3] = {
		{"debug", ": connecting to ", scheme},
		{"debug", ": connected to ", ", paths "},
		{"debug", path_known(PATH_DIRECT) ? " is reached by the path direct" : "", ""},
		{"debug", ": shut down by this side", "ep 0x"},
		{"debug", ": closed", "ep 0x"},
		{NULL, NULL, NULL},
	};

	logs[TEST_SERVER] = memfd_create("server", MFD_CLOEXEC);
	logs[TEST_CLIENT] = memfd_create("client", MFD_CLOEXEC);
	CHECK(logs[TEST_SERVER] >= 0 && logs[TEST_CLIENT] >= 0);
	setenv("GDRFAB_LOG", "debug", 1);
	pair(NULL, logged_server, logged_client, NULL);
	expect_lines(TEST_SERVER, server);
	expect_lines(TEST_CLIENT, client);
}
