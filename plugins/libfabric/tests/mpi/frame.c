/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The frame: runs the claims in the order of their files, gathers each rank's verdict, and lets rank 0 print one
 * line per claim. The verdict travels over the MPI under test, so the exit status of every rank reports it as well.
 */
#include "frame.h"

#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <unistd.h>

struct claim {
	const char *name;
	void (*run)(void);
	enum claim_needs needs;
};

static struct claim claims[256];
static size_t claim_count;
static const char *current = "start";
static const char *skip_reason;
static int failures;
static pthread_mutex_t reporting = PTHREAD_MUTEX_INITIALIZER;

int rank, ranks;
MPI_Comm world;

const int sizes[] = {0,	    1,	   8,	  63,	  64,	  65,	  192,	   1024,    4095,    16320,   16384,
		     16385, 40000, 65536, 131072, 131073, 262144, 1048576, 1048577, 4194304, 8388608};
const int size_count = (int)(sizeof(sizes) / sizeof(sizes[0]));

int count_of(int full, int fast)
{
	const char *quick = getenv("TEST_FAST");
	return quick && *quick && strcmp(quick, "0") != 0 ? fast : full;
}

int sizes_used(void)
{
	return count_of(size_count, size_count - 4);
}

void claim_add(const char *name, void (*run)(void), enum claim_needs needs)
{
	if (claim_count == sizeof(claims) / sizeof(claims[0])) {
		fprintf(stderr, "more claims than the frame has room for\n");
		exit(1);
	}
	claims[claim_count++] = (struct claim){.name = name, .run = run, .needs = needs};
}

void wrong(const char *file, int line, const char *format, ...)
{
	va_list args;

	pthread_mutex_lock(&reporting);
	/* The first few are enough; one line for each wrong byte would bury them. */
	if (failures++ < 5) {
		char text[512];
		va_start(args, format);
		vsnprintf(text, sizeof(text), format, args);
		va_end(args);
		printf("     %s, rank %d, %s:%d: %s\n", current, rank, file, line, text);
		fflush(stdout);
	}
	pthread_mutex_unlock(&reporting);
}

void skip(const char *reason)
{
	skip_reason = reason;
}

void *room(size_t n)
{
	void *memory = calloc(1, n ? n : 1);
	if (!memory) {
		fprintf(stderr, "rank %d: no memory for %zu bytes\n", rank, n);
		MPI_Abort(MPI_COMM_WORLD, 1);
	}
	return memory;
}

static uint64_t mix(uint64_t x)
{
	x ^= x >> 31;
	x *= 0x9e3779b97f4a7c15u;
	x ^= x >> 29;
	x *= 0xd1b54a32d192ed03u;
	return x ^ (x >> 32);
}

/* Eight bytes for each place, so that even large messages are quick to make and to check. */
static uint64_t word_at(size_t place, uint32_t who, uint32_t what)
{
	return mix(place + 1 + ((uint64_t)(who + 1) << 40) + ((uint64_t)(what + 1) << 52) * 31 + what);
}

void fill(void *bytes, size_t n, uint32_t who, uint32_t what)
{
	unsigned char *to = bytes;

	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = word_at(i, who, what);
		memcpy(to + i, &word, n - i < 8 ? n - i : 8);
	}
}

bool same(const void *bytes, size_t n, uint32_t who, uint32_t what, const char *file, int line)
{
	const unsigned char *got = bytes;

	for (size_t i = 0; i < n; i += 8) {
		uint64_t word = word_at(i, who, what);
		size_t part = n - i < 8 ? n - i : 8;
		if (memcmp(got + i, &word, part) == 0)
			continue;
		wrong(file, line, "of %zu bytes of rank %u, item %u, those from byte %zu on are wrong", n, who, what,
		      i);
		return false;
	}
	return true;
}

void check_status(MPI_Status *status, int source, int tag, int bytes, const char *file, int line)
{
	int count = -1;

	MPI_Get_count(status, MPI_BYTE, &count);
	if (status->MPI_SOURCE != source || status->MPI_TAG != tag || count != bytes)
		wrong(file, line, "the status has source %d, tag %d, %d bytes; expected %d, %d, %d", status->MPI_SOURCE,
		      status->MPI_TAG, count, source, tag, bytes);
}

static void out_of_time(int number)
{
	char text[256];
	int length = snprintf(text, sizeof(text), "FAIL %s: rank %d does not come to its end\n", current, rank);

	(void)number;
	if (length > 0 && write(STDOUT_FILENO, text, (size_t)length) < 0)
		_exit(2);
	/* Not MPI_Abort(), which may itself hang. The launcher ends the other ranks. */
	_exit(1);
}

static bool chosen(const char *name, int argc, char **argv)
{
	bool any = false;

	for (int i = 1; i < argc; i++) {
		if (strncmp(argv[i], "--", 2) == 0)
			continue;
		any = true;
		if (strstr(name, argv[i]))
			return true;
	}
	return !any;
}

int main(int argc, char **argv)
{
	int provided = MPI_THREAD_SINGLE, passed = 0, failed = 0, skipped = 0, bad = 0;
	bool threads = argc > 1 && strcmp(argv[1], "--threads") == 0;
	const char *scale = getenv("TEST_TIME_SCALE");
	unsigned limit = 40u * (unsigned)(scale && atoi(scale) > 0 ? atoi(scale) : 1);
	char version[MPI_MAX_LIBRARY_VERSION_STRING];
	int length;

	setvbuf(stdout, NULL, _IOLBF, 0);
	signal(SIGALRM, out_of_time);
	alarm(limit);
	MPI_Init_thread(&argc, &argv, threads ? MPI_THREAD_MULTIPLE : MPI_THREAD_SINGLE, &provided);
	MPI_Comm_rank(MPI_COMM_WORLD, &rank);
	MPI_Comm_size(MPI_COMM_WORLD, &ranks);
	MPI_Comm_dup(MPI_COMM_WORLD, &world);
	MPI_Get_library_version(version, &length);
	if (rank == 0)
		printf("==== %d ranks, %.*s\n", ranks, (int)strcspn(version, ",\n"), version);

	for (size_t i = 0; i < claim_count; i++) {
		const struct claim *claim = &claims[i];
		double start = MPI_Wtime();
		int all = 0;

		if (!chosen(claim->name, argc, argv) || (claim->needs == NEEDS_THREADS) != threads)
			continue;
		current = claim->name;
		failures = 0;
		skip_reason = NULL;
		alarm(limit);
		if (claim->needs == NEEDS_THREADS && provided < MPI_THREAD_MULTIPLE)
			skip("this MPI gives no MPI_THREAD_MULTIPLE");
		else
			claim->run();
		bad += failures;
		MPI_Allreduce(&failures, &all, 1, MPI_INT, MPI_SUM, MPI_COMM_WORLD);
		if (rank != 0)
			continue;
		if (all > 0) {
			printf("FAIL %s: %d wrong\n", claim->name, all);
			failed++;
		} else if (skip_reason) {
			printf("skip %s: %s\n", claim->name, skip_reason);
			skipped++;
		} else {
			printf("ok   %s (%.0f ms)\n", claim->name, (MPI_Wtime() - start) * 1e3);
			passed++;
		}
	}
	current = "end";
	alarm(limit);
	MPI_Comm_free(&world);
	MPI_Finalize();
	if (rank == 0)
		printf("%d passed, %d failed, %d skipped\n", passed, failed, skipped);
	return bad > 0 || failed > 0;
}
