/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/*
 * Two processes. The server registers memory and waits. The client writes a text into that memory, and the server
 * learns that the text is there by the number that comes with the write.
 *
 *   cc -o hello hello.c $(pkg-config --cflags --libs gdrfab)
 *   ./hello server &  sleep 1;  ./hello client        (or: ./hello.sh ./hello)
 */
#include <errno.h>
#include <gdrfab.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define OK(call) do { if ((call) < 0) { fprintf(stderr, "%s: %s\n", #call, gdrfab_last_error()); exit(1); } } while (0)

struct target { uint64_t addr, key; }; /* the client must know this of the server's memory */

static gdrfab_info *info;
static gdrfab_fabric *fabric;
static gdrfab_eq *eq;
static gdrfab_domain *domain;
static gdrfab_cq *cq;
static gdrfab_ep *ep;

static void open_fabric(uint64_t flags)
{
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, "hello", flags, NULL, &info));
	OK(gdrfab_fabric_open(info, NULL, &fabric));
	OK(gdrfab_eq_open(fabric, NULL, NULL, &eq));
}

static void open_endpoint(gdrfab_info *from)
{
	gdrfab_cq_attr attr = {sizeof attr, 0, 0, GDRFAB_CQ_FORMAT_DATA, GDRFAB_WAIT_NONE};
	OK(gdrfab_domain_open(fabric, from, NULL, &domain));
	OK(gdrfab_cq_open(domain, &attr, NULL, &cq));
	OK(gdrfab_ep_open(domain, from, NULL, &ep));
	OK(gdrfab_ep_bind_cq(ep, cq, GDRFAB_TRANSMIT | GDRFAB_RECV));
	OK(gdrfab_ep_bind_eq(ep, eq, 0));
	OK(gdrfab_ep_enable(ep));
}

static void peer_left(const char *before)
{
	fprintf(stderr, "the peer left before %s\n", before);
	exit(1);
}

/* Waits for this event of the connection. Any other event is the connection's end, or a second client's request. */
static void wait_event(uint32_t wanted, void *event, size_t len)
{
	for (uint32_t kind = 0; kind != wanted;) {
		OK(gdrfab_eq_sread(eq, &kind, event, len, -1, 0));
		if (kind == GDRFAB_SHUTDOWN)
			peer_left("the connection stood");
		if (kind == GDRFAB_CONNREQ && kind != wanted)
			gdrfab_freeinfo(((gdrfab_eq_cm_entry *)event)->info);
	}
}

/* Waits for a completion, and reads the event queue meanwhile: the end of the peer is an event, and brings no
 * completion. */
static void wait_completion(gdrfab_cq_data_entry *done, const char *what)
{
	gdrfab_eq_cm_entry event;
	uint32_t kind = 0;
	ssize_t got;
	/* After the end, the queue is read once more: its last completion may have come just before. */
	while ((got = gdrfab_cq_sread(cq, done, 1, kind == GDRFAB_SHUTDOWN ? 0 : 100)) == -EAGAIN) {
		if (kind == GDRFAB_SHUTDOWN)
			peer_left(what);
		got = gdrfab_eq_read(eq, &kind, &event, sizeof event, 0);
		if (got == -EAGAIN)
			continue;
		OK(got);
		if (kind == GDRFAB_CONNREQ)
			gdrfab_freeinfo(event.info);
	}
	OK(got);
}

static void close_all(void)
{
	OK(gdrfab_ep_close(ep));
	OK(gdrfab_cq_close(cq));
	OK(gdrfab_domain_close(domain));
	OK(gdrfab_eq_close(eq));
	OK(gdrfab_fabric_close(fabric));
	gdrfab_freeinfo(info);
}

static void server(void)
{
	gdrfab_pep *pep;
	gdrfab_mr *mr;
	gdrfab_eq_cm_entry event;
	gdrfab_cq_data_entry done;
	void *memory;

	open_fabric(GDRFAB_SOURCE);
	OK(gdrfab_pep_open(fabric, info, NULL, &pep));
	OK(gdrfab_pep_bind_eq(pep, eq, 0));
	OK(gdrfab_pep_listen(pep));
	printf("server: listening at %s\n", info->src_addr);
	fflush(stdout);

	wait_event(GDRFAB_CONNREQ, &event, sizeof event);
	open_endpoint(event.info);
	gdrfab_freeinfo(event.info);
	OK(gdrfab_mem_alloc(domain, GDRFAB_HMEM_SYSTEM, 0, 4096, 0, &memory));
	OK(gdrfab_mr_reg(domain, memory, 4096, GDRFAB_REMOTE_WRITE, 0, 0, 0, NULL, &mr));
	struct target target = {(uintptr_t)memory, gdrfab_mr_key(mr)};
	OK(gdrfab_ep_accept(ep, &target, sizeof target));
	wait_event(GDRFAB_CONNECTED, &event, sizeof event);

	wait_completion(&done, "its text came");
	printf("server: %zu bytes arrived with the number %llu: \"%s\"\n", done.len, (unsigned long long)done.data,
	       (const char *)memory);

	OK(gdrfab_mr_close(mr)); /* from here on no peer reaches the memory */
	OK(gdrfab_mem_free(domain, memory));
	OK(gdrfab_pep_close(pep));
	close_all();
}

static void client(void)
{
	struct { gdrfab_eq_cm_entry entry; struct target target; } accepted;
	char text[] = "hello, other process", words[1024];
	gdrfab_cq_data_entry done;
	gdrfab_path_info path;

	open_fabric(0);
	open_endpoint(info);
	OK(gdrfab_ep_connect(ep, info->dest_addr, info->dest_addrlen, NULL, 0));
	wait_event(GDRFAB_CONNECTED, &accepted, sizeof accepted);

	memset(&path, 0, sizeof path);
	path.struct_size = sizeof path;
	OK(gdrfab_ep_query(ep, 0, accepted.target.key, &path)); /* the bytes' path, and the reason for it */
	OK(gdrfab_tostr(&path.path, GDRFAB_TYPE_PATHS, words, sizeof words));
	printf("client: path: %s\n", words);
	OK(gdrfab_ep_explain(ep, 0, accepted.target.key, words, sizeof words));
	printf("client: %s", words);

	OK(gdrfab_writedata(ep, text, sizeof text, NULL, 42, 0, accepted.target.addr, accepted.target.key, NULL));
	wait_completion(&done, "the text was there"); /* now the text is there, and this buffer is ours again */
	printf("client: %zu bytes written\n", sizeof text);
	close_all();
}

int main(int argc, char **argv)
{
	if (argc == 2 && strcmp(argv[1], "server") == 0)
		server();
	else if (argc == 2 && strcmp(argv[1], "client") == 0)
		client();
	else
		fprintf(stderr, "usage: %s server | client\n", argv[0]);
	return argc != 2;
}
