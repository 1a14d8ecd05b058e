/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * The side that has the file. It works through local slots: it reads a piece from the file into a free slot, and
 * writes the piece from there into the slot of the same number in the receiver's region. A slot is free when two
 * things have arrived: the completion of its write (the local buffer is free) and the receiver's credit (the remote
 * buffer is free).
 */
#define _POSIX_C_SOURCE 200809L
#define _FILE_OFFSET_BITS 64
#include "sha256.h"
#include "transfer.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define HASH_STEP ((size_t)1 << 20)
#define PIECE_MAX ((uint64_t)1 << 30)

struct sender {
	struct fabric f;
	const char *path;
	int file;
	uint64_t id, len;
	unsigned char hash[32];
	struct message region; /* as the receiver described it */
	uint64_t first;	       /* offset in the file at which this transfer begins: more than 0 if resumed */
	struct head *heads;    /* local, SLOTS of them; behind them in the same region: */
	unsigned char *slots;
	gdrfab_mr *mr;
	struct work writes[SLOTS], head_write;
	/* Pieces since the beginning: posted >= told, posted >= credited. */
	uint64_t pieces, posted, told, credited;
	bool done_sent;
};

/* Reads exactly len bytes. A file that has become shorter is an error. */
static bool read_at(const struct sender *s, void *to, uint64_t len, uint64_t at)
{
	unsigned char *p = to;
	while (len > 0) {
		ssize_t got = pread(s->file, p, (size_t)len, (off_t)at);
		if (got < 0 && errno == EINTR && !interrupted)
			continue;
		if (got <= 0)
			return say("%s: %s", s->path, got < 0 ? strerror(errno) : "has become shorter meanwhile");
		p += got;
		at += (uint64_t)got;
		len -= (uint64_t)got;
	}
	return true;
}

/* The receiver gets the hash before the first byte, so the file is read once before connecting. */
static bool open_and_hash(struct sender *s, void *buffer)
{
	struct stat about;
	struct sha256 sha;
	s->file = open(s->path, O_RDONLY | O_CLOEXEC);
	if (s->file < 0 || fstat(s->file, &about) < 0)
		return say("FILE %s: %s", s->path, strerror(errno));
	if (!S_ISREG(about.st_mode))
		return say("FILE %s: not a regular file", s->path);
	s->len = (uint64_t)about.st_size;
	sha256_begin(&sha);
	for (uint64_t at = 0; at < s->len;) {
		size_t part = s->len - at < HASH_STEP ? (size_t)(s->len - at) : HASH_STEP;
		if (interrupted)
			return say("interrupted");
		if (!read_at(s, buffer, part, at))
			return false;
		sha256_add(&sha, buffer, part);
		at += part;
		progress("hashing", at, s->len);
	}
	sha256_end(&sha, s->hash);
	memcpy(&s->id, s->hash, sizeof s->id);
	s->id = wire(s->id);
	return true;
}

/* Sends the offer and receives the region for it. The peer's values are checked before they are used. */
static bool negotiate(struct sender *s)
{
	struct message offer, *r = &s->region;
	memset(&offer, 0, sizeof offer);
	offer.kind = OFFER;
	offer.id = s->id;
	offer.len = s->len;
	memcpy(offer.hash, s->hash, sizeof offer.hash);
	if (fabric_send(&s->f, &offer) != 1)
		return say("the offer could not be sent");
	if (!fabric_expect(&s->f, REGION, s->id, r))
		return false;
	if (r->len == 0 || r->len > PIECE_MAX || SLOT_BYTES(r->len) > s->f.info->max_msg_size)
		return say("the receiver asks for pieces of %llu bytes", (unsigned long long)r->len);
	if (r->slots == 0 || r->slots > SLOTS)
		return say("the receiver has %llu slots, must be 1 to %d", (unsigned long long)r->slots, SLOTS);
	if (r->count > s->len)
		return say("the receiver has more bytes than the file: %llu", (unsigned long long)r->count);
	s->first = r->count;
	s->pieces = (s->len - s->first + r->len - 1) / r->len;
	return true;
}

/* Registers the local slots. Every write from them needs the descriptor (the verbs' lkey). */
static bool register_slots(struct sender *s)
{
	void *memory = NULL;
	size_t bytes = (size_t)(s->region.slots * s->region.len) + SLOTS * sizeof(struct head);
	if (gdrfab_mem_alloc(s->f.domain, GDRFAB_HMEM_SYSTEM, 0, bytes, 0, &memory) < 0)
		return say("no memory for %zu bytes of slots: %s", bytes, gdrfab_last_error());
	s->heads = memory;
	s->slots = (unsigned char *)memory + SLOTS * sizeof(struct head);
	if (gdrfab_mr_reg(s->f.domain, memory, bytes, GDRFAB_WRITE, 0, 2, 0, NULL, &s->mr) < 0)
		return say("the slots cannot be registered: %s", gdrfab_last_error());
	return true;
}

static ssize_t write_slot(struct sender *s, unsigned slot, uint64_t len)
{
	const struct message *r = &s->region;
	struct iovec iov[2];
	void *desc[2] = {gdrfab_mr_desc(s->mr), gdrfab_mr_desc(s->mr)};
	uint64_t to = r->addr + slot * SLOT_BYTES(r->len);
	iov[0].iov_base = &s->heads[slot];
	iov[0].iov_len = sizeof(struct head);
	iov[1].iov_base = s->slots + slot * r->len;
	iov[1].iov_len = (size_t)len;
	/* A scatter-gather list: head and bytes lie apart here, and arrive joined, by one work request. */
	if (s->f.info->tx_iov_limit >= 2)
		return gdrfab_writev(s->f.ep, iov, desc, 2, 0, to, r->key, &s->writes[slot]);
	/* iWARP takes one piece for each write. If there is no room for the bytes, the head is written again later,
	 * which does no harm. */
	ssize_t rc = gdrfab_write(s->f.ep, iov[0].iov_base, iov[0].iov_len, desc[0], 0, to, r->key, &s->head_write);
	return rc < 0 ? rc
		      : gdrfab_write(s->f.ep, iov[1].iov_base, iov[1].iov_len, desc[1], 0, to + sizeof(struct head),
				     r->key, &s->writes[slot]);
}

/* Reads the next piece into its slot and posts the write. Returns 1: posted, 0: no room now, -1: error. */
static int post_piece(struct sender *s)
{
	const struct message *r = &s->region;
	uint64_t number = s->posted, at = s->first + number * r->len;
	uint64_t len = s->len - at < r->len ? s->len - at : r->len;
	unsigned slot = (unsigned)(number % r->slots);
	struct head *head = &s->heads[slot];
	if (number == s->pieces || number - s->credited == r->slots || s->writes[slot].busy)
		return 0;
	if (!read_at(s, s->slots + slot * r->len, len, at))
		return -1;
	head->number = wire(number);
	head->offset = wire(at);
	head->len = wire(len);
	s->writes[slot].kind = WRITE;
	s->writes[slot].index = slot;
	int rc = fabric_posted(&s->f, write_slot(s, slot, len), "the write of a piece");
	s->writes[slot].busy = rc == 1;
	s->posted += rc == 1;
	return rc;
}

/* Sends the number of pieces written and, at the end, that these were all. Messages cannot overtake the writes. */
static int tell(struct sender *s)
{
	struct message m;
	memset(&m, 0, sizeof m);
	m.id = s->id;
	m.count = s->posted;
	m.kind = PIECES;
	int rc = s->told < s->posted ? fabric_send(&s->f, &m) : 1;
	if (rc != 1)
		return rc;
	s->told = s->posted;
	if (s->told < s->pieces || s->done_sent)
		return 1;
	m.kind = DONE;
	rc = fabric_send(&s->f, &m);
	s->done_sent = rc == 1;
	return rc;
}

/* Handles the receiver's verdict in `m`. */
static bool judged(struct sender *s, const struct message *m)
{
	if (m->count != 0)
		return say("bad, says the receiver: %s", m->text);
	if (!s->done_sent)
		return say("the receiver judges before all is there");
	return true;
}

static bool transfer(struct sender *s)
{
	for (;;) {
		struct event e;
		int posted = post_piece(s);
		if (posted < 0 || tell(s) < 0)
			return false;
		/* After a post there may be room for the next piece at once, so the step does not sleep. */
		switch (fabric_step(&s->f, &e, posted == 0)) {
		case STEP_FAILED:
			return false;
		case STEP_ENDED:
			fabric_say_ended(&s->f);
			return false;
		case STEP_MESSAGE:
			if (e.message.id == s->id && e.message.kind == VERDICT)
				return judged(s, &e.message);
			if (e.message.id != s->id || e.message.kind != CREDIT || e.message.count < s->credited ||
			    e.message.count > s->told)
				return say("the receiver breaks the protocol");
			s->credited = e.message.count;
			progress("sending", s->credited == s->pieces ? s->len : s->first + s->credited * s->region.len,
				 s->len);
			break;
		default:
			break;
		}
	}
}

bool send_file(const char *addr, const struct options *o)
{
	static unsigned char buffer[HASH_STEP];
	struct sender s;
	memset(&s, 0, sizeof s);
	s.path = o->path;
	s.f.limit_ms = o->limit_ms;
	s.head_write.kind = WRITE_HEAD;
	bool good = open_and_hash(&s, buffer) && fabric_connect(&s.f, addr) && negotiate(&s) && register_slots(&s) &&
		    transfer(&s);
	/* The receiver waits for the disconnection, which tells it that its verdict has arrived. */
	if (good)
		gdrfab_ep_shutdown(s.f.ep, 0);
	/* Closed before the memory is freed: after a failure, work under way may still read it. */
	if (s.f.ep)
		gdrfab_ep_close(s.f.ep);
	s.f.ep = NULL;
	if (s.mr)
		gdrfab_mr_close(s.mr);
	if (s.heads)
		gdrfab_mem_free(s.f.domain, s.heads);
	fabric_close(&s.f);
	if (s.file > 0)
		close(s.file);
	if (good && s.first > 0)
		say("resumed at byte %llu", (unsigned long long)s.first);
	return good;
}
