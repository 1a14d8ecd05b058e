/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * file_transfer: moves a file by RMA writes. A lab of an RDMA course, on any provider; docs/tutorial.md walks
 * through it. This file has the arguments, the clock, and the output for the user.
 *
 *   cc -o file_transfer *.c $(pkg-config --cflags --libs gdrfab)
 *   ./file_transfer recv --provider tcp --out copy &      (prints where it listens)
 *   ./file_transfer send tcp://127.0.0.1:41234 original
 */
#define _POSIX_C_SOURCE 200809L
#include "transfer.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB ((uint64_t)1 << 20)

volatile sig_atomic_t interrupted;
static bool bar_shown;

long long now_ms(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (long long)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

bool say(const char *format, ...)
{
	va_list args;
	if (bar_shown)
		fputc('\n', stderr);
	bar_shown = false;
	fputs("file_transfer: ", stderr);
	va_start(args, format);
	vfprintf(stderr, format, args);
	va_end(args);
	fputc('\n', stderr);
	return false;
}

/* Prints ten times a second, and only to a terminal. */
void progress(const char *what, uint64_t done, uint64_t all)
{
	static const char full[] = "========================================";
	static const char *last;
	static long long began, shown;
	static uint64_t from;
	static int tty = -1;
	if (tty < 0)
		tty = isatty(STDERR_FILENO);
	if (!tty)
		return;
	long long now = now_ms();
	if (what != last) {
		began = now;
		from = done;
	} else if (done < all && now - shown < 100) {
		return;
	}
	last = what;
	shown = now;
	double part = all ? (double)done / (double)all : 1;
	double rate = now > began ? (double)(done - from) / 1000.0 / (double)(now - began) : 0;
	fprintf(stderr, "\r%-20s [%-40.*s] %3d %% of %.1f MiB, %.0f MB/s ", what, (int)(part * 40), full,
		(int)(part * 100), (double)all / (double)MIB, rate);
	bar_shown = true;
}

static void on_signal(int number)
{
	(void)number;
	interrupted = 1;
}

static int usage(void)
{
	fputs("usage: file_transfer recv --out FILE [--provider shm|tcp|verbs] [--listen ADDRESS] [--window SIZE]\n"
	      "                          [--resume] [--timeout SECONDS]\n"
	      "       file_transfer send ADDRESS FILE [--timeout SECONDS]\n"
	      "ADDRESS as shm://name, tcp://host:port, verbs://host:port; recv says where it listens.\n"
	      "--window: bytes of the receiver's region (16M); --resume: keeps and continues what was begun;\n"
	      "--timeout: the longest silence of the other side (10)\n",
	      stderr);
	return 2;
}

/* Reads a number such as "300M", with K, M or G after it; 0 if it is invalid or too large. */
static uint64_t size_of(const char *text)
{
	static const char units[] = "KMG";
	char *end;
	errno = 0;
	unsigned long long number = strtoull(text, &end, 10);
	const char *unit = *end ? strchr(units, *end) : NULL;
	unsigned shift = unit ? (unsigned)(unit - units + 1) * 10 : 0;
	if (text[0] < '0' || text[0] > '9' || errno || (*end && (!unit || end[1])) || number > UINT64_MAX >> shift)
		return 0;
	return (uint64_t)number << shift;
}

/* The value after `name` at argv[*i], in the form "--name value". */
static const char *value_of(int argc, char **argv, int *i, const char *name)
{
	if (strcmp(argv[*i], name) != 0)
		return NULL;
	if (*i + 1 < argc)
		return argv[++*i];
	say("%s: needs a value", name);
	exit(usage());
}

int main(int argc, char **argv)
{
	struct options o = {NULL, NULL, NULL, 16 * MIB, false, 10000};
	const char *words[2] = {NULL, NULL}, *value;
	size_t count = 0;
	if (argc < 2 || (strcmp(argv[1], "send") != 0 && strcmp(argv[1], "recv") != 0))
		return usage();
	bool sends = strcmp(argv[1], "send") == 0;
	for (int i = 2; i < argc; i++) {
		if ((value = value_of(argc, argv, &i, "--timeout")) != NULL) {
			char *end;
			double seconds = strtod(value, &end);
			if (*end || end == value || !(seconds >= 0.1 && seconds <= 86400)) {
				say("--timeout %s: must be 0.1 to 86400 seconds", value);
				return 2;
			}
			o.limit_ms = (int)(seconds * 1000);
		} else if (sends && argv[i][0] != '-' && count < 2) {
			words[count++] = argv[i];
		} else if (sends) {
			say("%s: not an argument of send", argv[i]);
			return usage();
		} else if ((value = value_of(argc, argv, &i, "--out")) != NULL) {
			o.path = value;
		} else if ((value = value_of(argc, argv, &i, "--provider")) != NULL) {
			o.provider = value;
		} else if ((value = value_of(argc, argv, &i, "--listen")) != NULL) {
			o.listen = value;
		} else if ((value = value_of(argc, argv, &i, "--window")) != NULL) {
			o.window = size_of(value);
			if (o.window < 4096 || o.window > 16384 * MIB) {
				say("--window %s: must be 4K to 16G", value);
				return 2;
			}
		} else if (strcmp(argv[i], "--resume") == 0) {
			o.resume = true;
		} else {
			say("%s: not an argument of recv", argv[i]);
			return usage();
		}
	}
	if (sends && count < 2)
		return usage();
	if (!sends && (!o.path || !*o.path)) {
		say("--out: which file?");
		return usage();
	}

	/* Without SA_RESTART, so that a signal ends a sleep and the program can clean up. */
	struct sigaction action;
	memset(&action, 0, sizeof action);
	action.sa_handler = on_signal;
	sigaction(SIGINT, &action, NULL);
	sigaction(SIGTERM, &action, NULL);

	o.path = sends ? words[1] : o.path;
	bool good = sends ? send_file(words[0], &o) : receive_file(&o);
	if (bar_shown)
		fputc('\n', stderr);
	return good ? 0 : 1;
}
