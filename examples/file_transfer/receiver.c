/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The side that gets the file. Its processor takes no part in the writes. Messages tell it how many pieces lie in
 * its region; it takes them out in order and gives credit for the slots. The bytes go to a part file, which gets its
 * final name only when the hash of the whole file is right.
 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "sha256.h"
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PAGE ((uint64_t)4096)
#define BEAT_MS 1000 /* while old bytes are hashed, the sender gets a sign of life this often */

struct receiver {
	struct fabric f;
	const struct options *o;
	char *part; /* the file's name until it is whole */
	int file;
	struct message offer;
	struct sha256 sha;
	unsigned char *region;
	gdrfab_mr *mr;
	uint64_t slots, piece;
	uint64_t first; /* offset in the file at which the sender begins */
	/* Pieces since the beginning: pieces >= arrived >= taken >= credited. */
	uint64_t pieces, arrived, taken, credited;
	bool done;
	char bad[sizeof ((struct message *)0)->text]; /* the reason of a failure, for the sender */
};

/* Prints an error and keeps it for the sender. */
static bool refuse(struct receiver *r, const char *what, const char *why)
{
	snprintf(r->bad, sizeof r->bad, "%s: %s", what, why);
	return say("%s", r->bad);
}

/* Opens the part file. Its name is made of the whole hash, computed here, so that bytes of an earlier attempt belong
 * to the same file, whatever id the sender uses. */
static bool open_part(struct receiver *r)
{
	struct stat about;
	uint64_t id;
	memcpy(&id, r->offer.hash, sizeof id);
	if (r->offer.id != wire(id))
		return refuse(r, "offer", "the id is not that of the hash");
	size_t at = strlen(r->o->path) + 1, len = at + 2 * sizeof r->offer.hash + sizeof ".part";
	r->part = malloc(len);
	if (!r->part)
		return refuse(r, "part file", strerror(ENOMEM));
	snprintf(r->part, len, "%s.", r->o->path);
	for (size_t i = 0; i < sizeof r->offer.hash; i++, at += 2)
		snprintf(r->part + at, len - at, "%02x", r->offer.hash[i]);
	snprintf(r->part + at, len - at, ".part");
	r->file = open(r->part, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW | (r->o->resume ? 0 : O_TRUNC), 0666);
	if (r->file < 0 || fstat(r->file, &about) < 0)
		return refuse(r, "part file", strerror(errno));
	if (!S_ISREG(about.st_mode))
		return refuse(r, "part file", "is no regular file");
	r->first = (uint64_t)about.st_size;
	if (r->first > r->offer.len) {
		r->first = 0;
		if (ftruncate(r->file, 0) < 0)
			return refuse(r, "part file", strerror(errno));
	}
	return true;
}

/* The region may be much smaller than the file, because its slots are used again and again. */
static bool register_region(struct receiver *r)
{
	void *memory = NULL;
	uint64_t left = r->offer.len - r->first;
	r->piece = (r->o->window / SLOTS + PAGE - 1) / PAGE * PAGE;
	r->slots = SLOTS;
	while (r->slots > 1 && (r->slots - 1) * r->piece >= left)
		r->slots--;
	r->pieces = (left + r->piece - 1) / r->piece;
	size_t bytes = (size_t)(r->slots * SLOT_BYTES(r->piece));
	if (gdrfab_mem_alloc(r->f.domain, GDRFAB_HMEM_SYSTEM, 0, bytes, 0, &memory) < 0)
		return refuse(r, "no memory for the region", gdrfab_last_error());
	r->region = memory;
	if (gdrfab_mr_reg(r->f.domain, memory, bytes, GDRFAB_REMOTE_WRITE, 0, 2, 0, NULL, &r->mr) < 0)
		return refuse(r, "the region cannot be registered", gdrfab_last_error());
	return true;
}

static bool answer(struct receiver *r)
{
	struct message m;
	gdrfab_mr_info about;
	memset(&m, 0, sizeof m);
	memset(&about, 0, sizeof about);
	about.struct_size = sizeof about;
	if (gdrfab_mr_query(r->mr, &about) < 0)
		return refuse(r, "the region", gdrfab_last_error());
	m.kind = REGION;
	m.id = r->offer.id;
	m.addr = about.base;
	m.key = about.key;
	m.slots = r->slots;
	m.len = r->piece;
	m.count = r->first;
	return fabric_send(&r->f, &m) == 1 || say("the answer could not be sent");
}

/* Handles the next event. False: the transfer is over or has failed. */
static bool handle(struct receiver *r, bool wait)
{
	struct event e;
	const struct message *m = &e.message;
	for (;;) {
		enum step step = fabric_step(&r->f, &e, wait);
		if (step == STEP_ENDED)
			fabric_say_ended(&r->f);
		if (step == STEP_ENDED || step == STEP_FAILED)
			return false;
		if (step == STEP_NOTHING)
			return true;
		wait = false;
		if (step != STEP_MESSAGE)
			continue;
		if (m->kind == PIECES && m->id == r->offer.id && m->count > r->arrived && m->count <= r->pieces &&
		    m->count - r->taken <= r->slots)
			r->arrived = m->count;
		else if (m->kind == DONE && m->id == r->offer.id && r->arrived == r->pieces && !r->done)
			r->done = true;
		else
			return refuse(r, "protocol", "a message that cannot be right");
	}
}

/* Sends credit for the slots that are free again. `again`: repeats the last number, as a sign of life. */
static bool credit(struct receiver *r, bool again)
{
	struct message m;
	if (r->credited == r->taken && !again)
		return true;
	memset(&m, 0, sizeof m);
	m.kind = CREDIT;
	m.id = r->offer.id;
	m.count = r->taken;
	int rc = fabric_send(&r->f, &m);
	if (rc == 1)
		r->credited = r->taken;
	return rc >= 0; /* no room now: the next turn tries again */
}

/* Hashes the bytes from an earlier attempt, which are part of the file's hash. */
static bool hash_part(struct receiver *r)
{
	static unsigned char buffer[1 << 20];
	long long beat = now_ms();
	for (uint64_t at = 0; at < r->first;) {
		uint64_t left = r->first - at;
		ssize_t got = pread(r->file, buffer, left < sizeof buffer ? (size_t)left : sizeof buffer, (off_t)at);
		if (interrupted)
			return say("interrupted");
		if (got <= 0)
			return refuse(r, "part file", got < 0 ? strerror(errno) : "has become shorter");
		sha256_add(&r->sha, buffer, (size_t)got);
		at += (uint64_t)got;
		progress("hashing what is here", at, r->first);
		if (now_ms() - beat < BEAT_MS)
			continue;
		beat = now_ms();
		if (!handle(r, false) || !credit(r, true))
			return false;
	}
	return true;
}

static bool write_part(struct receiver *r, const unsigned char *bytes, uint64_t len, uint64_t at)
{
	while (len > 0) {
		ssize_t put = pwrite(r->file, bytes, (size_t)len, (off_t)at);
		if (put < 0 && errno == EINTR && !interrupted)
			continue;
		if (put < 0)
			return refuse(r, "part file", strerror(errno));
		bytes += put;
		at += (uint64_t)put;
		len -= (uint64_t)put;
	}
	return true;
}

static bool take_piece(struct receiver *r)
{
	const unsigned char *slot = r->region + r->taken % r->slots * SLOT_BYTES(r->piece);
	uint64_t at = r->first + r->taken * r->piece;
	uint64_t left = r->offer.len - at, len = left < r->piece ? left : r->piece;
	struct head head;
	memcpy(&head, slot, sizeof head);
	if (wire(head.number) != r->taken || wire(head.offset) != at || wire(head.len) != len)
		return refuse(r, "protocol", "a piece whose head is not what was due");
	sha256_add(&r->sha, slot + sizeof head, (size_t)len);
	if (!write_part(r, slot + sizeof head, len, at))
		return false;
	r->taken++;
	progress("receiving", at + len, r->offer.len);
	return true;
}

static bool take_all(struct receiver *r)
{
	while (!r->done || r->taken < r->pieces) {
		if (!handle(r, r->taken == r->arrived && r->credited == r->taken))
			return false;
		if (interrupted)
			return say("interrupted");
		if (r->taken < r->arrived && !take_piece(r))
			return false;
		if (!credit(r, false))
			return false;
	}
	return true;
}

/* Compares the hash of the received file with the announced one, and gives the file its final name. */
static bool conclude(struct receiver *r)
{
	unsigned char hash[32];
	/* From here on no peer reaches the memory, so no late write can follow the hash. */
	if (gdrfab_mr_close(r->mr) < 0)
		return refuse(r, "the region does not close", gdrfab_last_error());
	r->mr = NULL;
	sha256_end(&r->sha, hash);
	if (memcmp(hash, r->offer.hash, sizeof hash) != 0) {
		unlink(r->part); /* nothing to resume from */
		return refuse(r, "hash", "what arrived is not what was offered");
	}
	if (rename(r->part, r->o->path) < 0)
		return refuse(r, "rename", strerror(errno));
	return true;
}

/* Sends the verdict and waits for the sender to disconnect, so that the verdict is not lost with the connection. */
static bool judge(struct receiver *r, bool good)
{
	struct message m;
	struct event e;
	enum step step;
	memset(&m, 0, sizeof m);
	m.kind = VERDICT;
	m.id = r->offer.id;
	m.count = good ? 0 : 1;
	memcpy(m.text, r->bad, sizeof m.text);
	while (fabric_send(&r->f, &m) == 0) {
		step = fabric_step(&r->f, &e, true);
		if (step == STEP_FAILED || step == STEP_ENDED)
			return say("the sender left without an answer");
	}
	do
		step = fabric_step(&r->f, &e, true);
	while (step != STEP_FAILED && step != STEP_ENDED);
	return step == STEP_ENDED;
}

/* Keeps an unfinished part file for --resume, and removes it otherwise. */
static void drop_part(struct receiver *r)
{
	struct stat about;
	if (r->o->resume && fstat(r->file, &about) == 0 && about.st_size > 0)
		say("%lld bytes are kept in %s for the next attempt", (long long)about.st_size, r->part);
	else
		unlink(r->part);
}

bool receive_file(const struct options *o)
{
	struct receiver r;
	struct stat about;
	memset(&r, 0, sizeof r);
	r.o = o;
	r.file = -1;
	r.f.limit_ms = o->limit_ms;
	sha256_begin(&r.sha);
	if (stat(o->path, &about) == 0 && !S_ISREG(about.st_mode))
		return say("--out %s: exists and is not a regular file", o->path);
	bool connected = fabric_listen(&r.f, o->provider, o->listen) && fabric_accept(&r.f);
	bool offered = connected && fabric_expect(&r.f, OFFER, 0, &r.offer);
	bool good = offered && open_part(&r) && register_region(&r) && answer(&r) && hash_part(&r) && take_all(&r) &&
		    conclude(&r);
	if (offered && (good || r.bad[0]))
		judge(&r, good);
	if (good)
		say("good: %llu bytes in %s", (unsigned long long)r.offer.len, o->path);
	else if (r.file >= 0)
		drop_part(&r);
	if (r.f.ep)
		gdrfab_ep_close(r.f.ep);
	r.f.ep = NULL;
	if (r.mr)
		gdrfab_mr_close(r.mr);
	if (r.region)
		gdrfab_mem_free(r.f.domain, r.region);
	fabric_close(&r.f);
	if (r.file >= 0)
		close(r.file);
	free(r.part);
	return good;
}
