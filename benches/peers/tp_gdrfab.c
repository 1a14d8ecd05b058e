/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* gdrfab, through the installed library; connected by exchanged addresses.
 * Over shm, exposed memory is gdrfab_mem_alloc's, so the path is direct; source memory is too, and registered. Options:
 *   rdm      a connectionless endpoint, tagged messages and a queue of tagged entries, as MPI has them
 *   tcp      the provider tcp over loopback instead of shm: the path is socket, all memory private and anonymous
 *   fd       mode idle and waitlat poll() the queue's descriptor instead of calling gdrfab_cq_sread
 *   heap     expose private anonymous memory: the path is CMA
 *   staged   require the staged path of the exposed region
 *   srcheap  source is private anonymous memory (still registered)
 *   nodesc   pass no descriptor for the source
 *   dc       GDRFAB_DELIVERY_COMPLETE by default
 *   inject   puts and sends up to the inject size use gdrfab_inject_write and gdrfab_inject
 *   safe     GDRFAB_THREAD_SAFE instead of GDRFAB_THREAD_DOMAIN
 *   nocoop   the target never carries a part of a copy
 *   auto     GDRFAB_PROGRESS_AUTO instead of manual progress
 * The run dies when operations would take another path than the options ask for. With TP_VERBOSE side 0 says on
 * stderr which path it took and what its counters say at the end. */
#include "bench.h"
#include "transport.h"
#include <gdrfab.h>
#include "../older.h"
#include <inttypes.h>
#include <poll.h>

enum { TAG = 7 };

#define OK(x) do { \
	long r_ = (long)(x); \
	if (r_ < 0) \
		DIE("%s:%d %s -> %s: %s", __FILE__, __LINE__, #x, gdrfab_strerror((int)r_), \
		    gdrfab_last_error()); \
} while (0)

struct gf {
	struct tp tp;
	gdrfab_info *info;
	gdrfab_fabric *fabric;
	gdrfab_domain *domain;
	gdrfab_eq *eq;
	gdrfab_cq *cq;
	gdrfab_ep *ep;
	gdrfab_av *av;		/* connectionless only */
	uint64_t peer;
	gdrfab_mr *mr_in, *mr_src;
	void *d_src;
	uint64_t rbase, rkey;
	long posted, reaped, injected;
	size_t inject;
	int dc, tcp, heap, srcheap, side, fd;
};
struct hello {
	char addr[GDRFAB_ADDR_MAX];
	uint64_t alen, base, key;
};

static const char *g_version(void)
{
	return gdrfab_version_string();
}

/* Counts the entries of one call. Sends, puts and gets have no context; the context of a receive is the transport. */
static int taken(struct gf *g, const gdrfab_cq_entry *e, ssize_t r)
{
	int n = 0;

	if (r > 0) {
		for (ssize_t i = 0; i < r; i++)
			if (e[i].op_context)
				g->tp.received++;
			else
				n++;
	} else if (r != -EAGAIN && r != -EINTR) {
		char words[256] = "";
		gdrfab_cq_err_entry er = { .struct_size = sizeof er, .err_data = words,
			.err_data_size = sizeof words };

		if (r != -GDRFAB_EAVAIL || gdrfab_cq_readerr(g->cq, &er, 0) != 1)
			DIE("gdrfab_cq_read: %s: %s", gdrfab_strerror((int)r), gdrfab_last_error());
		DIE("completion queue: %s (%d): %s", gdrfab_strerror(er.err), er.prov_errno, words);
	}
	g->reaped += n;
	n += (int)g->injected;
	g->injected = 0;
	return n;
}

static int g_progress(struct tp *t)
{
	struct gf *g = (void *)t;
	gdrfab_cq_entry e[16];

	if (g->av) {
		gdrfab_cq_tagged_entry tagged[16];
		ssize_t r = gdrfab_cq_read(g->cq, tagged, 16);

		for (ssize_t i = 0; i < r; i++)
			e[i].op_context = tagged[i].op_context;
		return taken(g, e, r);
	}
	return taken(g, e, gdrfab_cq_read(g->cq, e, 16));
}

static int g_wait(struct tp *t, int ms)
{
	struct gf *g = (void *)t;
	struct pollfd p = { .fd = g->fd, .events = POLLIN };
	gdrfab_cq_entry e[16];
	int r;

	if (g->fd < 0)
		return taken(g, e, gdrfab_cq_sread(g->cq, e, 16, ms));
	r = gdrfab_cq_trywait(g->cq);
	if (!r)
		CHECK(poll(&p, 1, ms));
	else if (r != -EAGAIN)
		OK(r);
	return g_progress(t);
}

static char *memory(struct gf *g, size_t n, int heap)
{
	void *p;

	if (heap)
		return mem_anon(n, 1);
	OK(gdrfab_mem_alloc(g->domain, GDRFAB_HMEM_SYSTEM, 0, n, 0, &p));
	memset(p, 0, n);
	return p;
}

static gdrfab_mr *reg(struct gf *g, char *p, size_t n, uint64_t require)
{
	struct iovec v = { p, n };
	gdrfab_mr_attr a = { .struct_size = sizeof a, .mr_iov = &v, .iov_count = 1, .require = require };
	gdrfab_mr *mr;

	a.access = GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;
	OK(gdrfab_mr_regattr(g->domain, &a, 0, &mr));
	return mr;
}

static void path_name(uint64_t path, char *buf, size_t n)
{
	if (!path)
		snprintf(buf, n, "none");
	else
		OK(gdrfab_tostr(&path, GDRFAB_TYPE_PATHS, buf, n));
}

static void check_path(struct gf *g, const struct tp_open *o)
{
	uint64_t want = g->tcp ? GDRFAB_PATH_SOCKET : has_opt(o->arg, "staged") ? GDRFAB_PATH_STAGED :
		g->heap ? GDRFAB_PATH_CMA : GDRFAB_PATH_DIRECT;
	gdrfab_path_info pi = { .struct_size = sizeof pi };
	char words[2048], name[64], asked[64];

	OK(gdrfab_ep_query(g->ep, 0, g->rkey, &pi));
	OK(gdrfab_ep_explain(g->ep, 0, g->rkey, words, sizeof words));
	path_name(pi.path, name, sizeof name);
	path_name(want, asked, sizeof asked);
	if (pi.path != want)
		DIE("path %s, the options ask for %s: %s", name, asked, words);
	if (o->side || !getenv("TP_VERBOSE"))
		return;
	fprintf(stderr, "#gdrfab path=%s\n", name);
	for (char *save, *line = strtok_r(words, "\n", &save); line; line = strtok_r(NULL, "\n", &save))
		fprintf(stderr, "#  %s\n", line);
}

static void connect_peer(struct gf *g, const char *addr, size_t len)
{
	gdrfab_eq_cm_entry e;
	uint32_t event;
	ssize_t r;

	if (g->av) {
		/* The first message connects. */
		OK(gdrfab_av_insert(g->av, addr, 1, NULL, 0, NULL));
		return;
	}
	OK(gdrfab_ep_connect_addr(g->ep, addr, len));
	r = gdrfab_eq_sread(g->eq, &event, &e, sizeof e, 10000, 0);
	OK(r);
	if (event != GDRFAB_CONNECTED)
		DIE("event %u instead of the connection", event);
}

static struct tp *g_open(const struct tp_open *o)
{
	struct gf *g = calloc(1, sizeof *g);
	gdrfab_info h = { .struct_size = sizeof h };
	gdrfab_cq_attr cq = { .struct_size = sizeof cq, .size = 4096, .format = GDRFAB_CQ_FORMAT_CONTEXT };
	gdrfab_mr_info mi = { .struct_size = sizeof mi };
	struct hello me = { .alen = sizeof me.addr }, you;
	size_t alen = sizeof me.addr;
	uint32_t off = 0;

	h.caps = GDRFAB_MSG | GDRFAB_RMA | (o->atomic ? GDRFAB_ATOMIC : 0);
	h.ep_type = GDRFAB_EP_MSG;
	g->peer = GDRFAB_ADDR_UNSPEC;
	if (has_opt(o->arg, "rdm")) {
		h.ep_type = GDRFAB_EP_RDM;
		h.caps |= GDRFAB_TAGGED;
		cq.format = GDRFAB_CQ_FORMAT_TAGGED;
		g->peer = 0;
	}
	h.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY;
	h.msg_order = h.ep_type == GDRFAB_EP_MSG ? GDRFAB_ORDER_WAW : 0;
	h.threading = has_opt(o->arg, "safe") ? GDRFAB_THREAD_SAFE : GDRFAB_THREAD_DOMAIN;
	h.progress = has_opt(o->arg, "auto") ? GDRFAB_PROGRESS_AUTO : GDRFAB_PROGRESS_MANUAL;
	g->dc = has_opt(o->arg, "dc");
	if (g->dc)
		h.tx_op_flags = GDRFAB_DELIVERY_COMPLETE;
	g->tcp = has_opt(o->arg, "tcp");
	h.prov_name = g->tcp ? (char[]){ "tcp" } : (char[]){ "shm" };
	if (o->sleeps && has_opt(o->arg, "fd"))
		cq.wait_obj = GDRFAB_WAIT_FD;
	OK(gdrfab_getinfo(GDRFAB_VERSION, NULL, NULL, 0, &h, &g->info));
	OK(gdrfab_fabric_open(g->info, NULL, &g->fabric));
	OK(gdrfab_domain_open(g->fabric, g->info, NULL, &g->domain));
	g->fd = -1;
	OK(gdrfab_eq_open(g->fabric, NULL, NULL, &g->eq));
	OK(gdrfab_cq_open(g->domain, &cq, NULL, &g->cq));
	if (cq.wait_obj)
		OK(gdrfab_cq_fd(g->cq, &g->fd));
	OK(gdrfab_ep_open(g->domain, g->info, NULL, &g->ep));
	if (h.ep_type == GDRFAB_EP_RDM) {
		OK(gdrfab_av_open(g->domain, NULL, NULL, &g->av));
		OK(gdrfab_ep_bind_av(g->ep, g->av, 0));
	} else {
		OK(gdrfab_ep_bind_eq(g->ep, g->eq, 0));
	}
	OK(gdrfab_ep_bind_cq(g->ep, g->cq, GDRFAB_SEND | GDRFAB_RECV));
	if (has_opt(o->arg, "nocoop"))
		OK(gdrfab_ep_setopt(g->ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &off, sizeof off));
	OK(gdrfab_ep_enable(g->ep));
	g->side = o->side;
	g->heap = g->tcp || has_opt(o->arg, "heap");
	g->srcheap = g->tcp || has_opt(o->arg, "srcheap");
	g->tp.bytes = o->bytes;
	g->tp.exposed = memory(g, o->bytes, g->heap);
	g->tp.source = memory(g, o->bytes, g->srcheap);
	g->mr_in = reg(g, g->tp.exposed, o->bytes, has_opt(o->arg, "staged") ? GDRFAB_PATH_STAGED : 0);
	g->mr_src = reg(g, g->tp.source, o->bytes, 0);
	if (!has_opt(o->arg, "nodesc"))
		g->d_src = gdrfab_mr_desc(g->mr_src);
	if (has_opt(o->arg, "inject"))
		g->inject = g->info->inject_size;
	OK(gdrfab_ep_getname(g->ep, me.addr, &alen));
	OK(gdrfab_mr_query(g->mr_in, &mi));
	me.alen = alen;
	me.base = mi.base;
	me.key = mi.key;
	oob_swap(o->oob, &me, &you, sizeof me);
	g->rbase = you.base;
	g->rkey = you.key;
	connect_peer(g, you.addr, you.alen);
	if (!g->av)
		check_path(g, o);
	return &g->tp;
}

static int posted(struct gf *g, const char *call, ssize_t k)
{
	if (!k)
		g->posted++;
	else if (k != -EAGAIN)
		DIE("%s: %s: %s", call, gdrfab_strerror((int)k), gdrfab_last_error());
	return !k;
}

static int injected(struct gf *g, const char *call, ssize_t k)
{
	if (!k)
		g->injected++;
	else if (k != -EAGAIN)
		DIE("%s: %s: %s", call, gdrfab_strerror((int)k), gdrfab_last_error());
	return !k;
}

static int g_put(struct tp *t, size_t l, size_t r, size_t n)
{
	struct gf *g = (void *)t;
	char *from = t->source + l;

	if (n <= g->inject)
		return injected(g, "gdrfab_inject_write", gdrfab_inject_write(g->ep, from, n, g->peer,
									      g->rbase + r, g->rkey));
	return posted(g, "gdrfab_write", gdrfab_write(g->ep, from, n, g->d_src, g->peer, g->rbase + r,
						      g->rkey, NULL));
}

static int g_get(struct tp *t, size_t l, size_t r, size_t n)
{
	struct gf *g = (void *)t;

	return posted(g, "gdrfab_read", gdrfab_read(g->ep, t->source + l, n, g->d_src, g->peer,
						    g->rbase + r, g->rkey, NULL));
}

static int g_list(struct tp *t, const struct tp_block *blocks, size_t count, size_t len, int reads)
{
	static gdrfab_block *list;
	static size_t made;	/* the list is this program's, so making it is not part of the time */
	struct gf *g = (void *)t;
	gdrfab_msg_list m = { .struct_size = sizeof m, .count = count, .desc = g->d_src ? &g->d_src : NULL,
		.desc_count = !!g->d_src, .key = &g->rkey, .key_count = 1, .addr = g->peer };

	if (!list && !(list = malloc(count * sizeof *list)))
		DIE("no memory for %zu blocks", count);
	for (size_t i = 0; i < count && made != len; i++)
		list[i] = (gdrfab_block){ t->source + blocks[i].loff * len, g->rbase + blocks[i].roff * len, len };
	made = len;
	m.blocks = list;
	if (reads)
		return posted(g, "gdrfab_readlist", gdrfab_readlist(g->ep, &m, 0));
	return posted(g, "gdrfab_writelist", gdrfab_writelist(g->ep, &m, 0));
}

static int g_fadd(struct tp *t, size_t l, size_t r)
{
	static const uint64_t one = 1;
	struct gf *g = (void *)t;

	return posted(g, "gdrfab_fetch_atomic",
		      gdrfab_fetch_atomic(g->ep, &one, 1, NULL, t->source + l, g->d_src, g->peer, g->rbase + r, g->rkey,
					  GDRFAB_UINT64, GDRFAB_SUM, NULL));
}

static int g_send(struct tp *t, size_t off, size_t n)
{
	struct gf *g = (void *)t;

	if (g->av && n <= g->inject)
		return injected(g, "gdrfab_tinject", gdrfab_tinject(g->ep, t->source + off, n, g->peer, TAG));
	if (g->av)
		return posted(g, "gdrfab_tsend", gdrfab_tsend(g->ep, t->source + off, n, g->d_src, g->peer, TAG, NULL));
	if (n <= g->inject)
		return injected(g, "gdrfab_inject", gdrfab_inject(g->ep, t->source + off, n, GDRFAB_ADDR_UNSPEC));
	return posted(g, "gdrfab_send", gdrfab_send(g->ep, t->source + off, n, g->d_src, GDRFAB_ADDR_UNSPEC, NULL));
}

static int g_recv(struct tp *t, size_t off, size_t n)
{
	struct gf *g = (void *)t;
	ssize_t k = g->av ? gdrfab_trecv(g->ep, t->source + off, n, g->d_src, GDRFAB_ADDR_UNSPEC, TAG, 0, t) :
		gdrfab_recv(g->ep, t->source + off, n, g->d_src, GDRFAB_ADDR_UNSPEC, t);

	if (k && k != -EAGAIN)
		DIE("gdrfab_recv: %s: %s", gdrfab_strerror((int)k), gdrfab_last_error());
	return !k;
}

/* With dc every completion is a delivery. Without dc a completion promises less on the staged path, so an 8-byte
 * delivery-complete write follows the puts: the endpoint keeps the order of writes, so its delivery is that of all.
 * It is posted on every path, as a program must that does not know its path. */
static void g_flush(struct tp *t)
{
	struct gf *g = (void *)t;

	if (!g->dc) {
		size_t at = t->bytes - 8;
		struct iovec v = { t->source + at, 8 };
		gdrfab_rma_iov rv = { g->rbase + at, 8, g->rkey };
		gdrfab_msg_rma m = { .struct_size = sizeof m, .msg_iov = &v, .desc = g->d_src ? &g->d_src : NULL,
			.iov_count = 1, .addr = g->peer, .rma_iov = &rv, .rma_iov_count = 1 };

		while (!posted(g, "gdrfab_writemsg",
			       gdrfab_writemsg(g->ep, &m, GDRFAB_DELIVERY_COMPLETE | GDRFAB_COMPLETION)))
			g_progress(t);
	}
	while (g->reaped < g->posted)
		g_progress(t);
}

static uint64_t bytes_by(const gdrfab_stats *s, uint64_t path)
{
#ifdef GDRFAB_PATHS_MAX
	return s->by_path[GDRFAB_PATH_INDEX(path)].bytes;
#else
	return path == GDRFAB_PATH_DIRECT ? s->bytes_direct : path == GDRFAB_PATH_CMA ? s->bytes_cma :
		path == GDRFAB_PATH_STAGED ? s->bytes_staged : s->bytes_socket;
#endif
}

static void g_close(struct tp *t)
{
	struct gf *g = (void *)t;
	gdrfab_stats s = { .struct_size = sizeof s };

	OK(gdrfab_ep_stats(g->ep, &s));
	if (!g->side && getenv("TP_VERBOSE"))
		fprintf(stderr, "#gdrfab bytes direct=%" PRIu64 " cma=%" PRIu64 " staged=%" PRIu64 " socket=%" PRIu64
			" helped=%" PRIu64 " unexpected=%" PRIu64 "\n",
			bytes_by(&s, GDRFAB_PATH_DIRECT), bytes_by(&s, GDRFAB_PATH_CMA), bytes_by(&s, GDRFAB_PATH_STAGED),
			bytes_by(&s, GDRFAB_PATH_SOCKET), s.bytes_helped, s.unexpected);
	OK(gdrfab_mr_close(g->mr_in));
	OK(gdrfab_mr_close(g->mr_src));
	OK(gdrfab_ep_close(g->ep));
	if (g->av)
		OK(gdrfab_av_close(g->av));
	if (!g->heap)
		OK(gdrfab_mem_free(g->domain, t->exposed));
	if (!g->srcheap)
		OK(gdrfab_mem_free(g->domain, t->source));
	OK(gdrfab_cq_close(g->cq));
	OK(gdrfab_eq_close(g->eq));
	OK(gdrfab_domain_close(g->domain));
	OK(gdrfab_fabric_close(g->fabric));
	gdrfab_freeinfo(g->info);
}

const struct tp_ops tp_gdrfab = {
	"gdrfab", "[tcp][,fd][,heap][,staged][,srcheap][,nodesc][,dc][,inject][,safe][,nocoop][,auto]", g_version, NULL, g_open,
	g_put, g_get, g_send, g_recv, g_list, g_fadd, g_progress, g_wait, g_flush, g_close
};
