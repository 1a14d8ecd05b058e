/* SPDX-License-Identifier: Apache-2.0 OR MIT */
#include "link.hpp"

#include <cerrno>
#include <cstring>

constexpr size_t ENTRIES = 64;
constexpr uint64_t RIGHTS = GDRFAB_SEND | GDRFAB_RECV | GDRFAB_READ | GDRFAB_WRITE | GDRFAB_REMOTE_READ | GDRFAB_REMOTE_WRITE;

std::string last_words()
{
	return gdrfab_last_error();
}

/* Finds a candidate. Returns "" or the reason why there is none. */
static std::string discover(const Settings &s, gdrfab_info **info)
{
	gdrfab_info hints{};
	std::string providers = s.providers;
	hints.struct_size = sizeof hints;
	hints.ep_type = GDRFAB_EP_RDM;
	hints.caps = GDRFAB_MSG | GDRFAB_RMA | GDRFAB_HMEM;
	hints.mr_mode = GDRFAB_MR_VIRT_ADDR | GDRFAB_MR_PROV_KEY | GDRFAB_MR_HMEM;
	hints.prov_name = providers.empty() ? nullptr : &providers[0];
	hints.auth_key = s.key.empty() ? nullptr : s.key.data();
	hints.auth_key_size = s.key.size();
	if (gdrfab_getinfo(GDRFAB_VERSION, nullptr, nullptr, 0, &hints, info) < 0)
		return (providers.empty() ? "" : "GDRFAB_PROVIDER=" + providers + ": ") + last_words();
	/* A card has an address of its own, which is preferred unless the user named one by its interface. */
	if (s.address.empty() || (!s.address_named && (*info)->src_addr))
		return {};
	providers = (*info)->prov_name;
	hints.prov_name = &providers[0];
	gdrfab_freeinfo(*info);
	*info = nullptr;
	if (gdrfab_getinfo(GDRFAB_VERSION, s.address.c_str(), nullptr, GDRFAB_SOURCE, &hints, info) < 0)
		return last_words();
	return {};
}

std::string Link::open(const Settings &s)
{
	std::string wrong = discover(s, &info);
	if (!wrong.empty())
		return wrong;
	gdrfab_cq_attr attr{};
	attr.struct_size = sizeof attr;
	attr.format = GDRFAB_CQ_FORMAT_MSG;
	size_t len = own.size();
	/* Only the agent's metadata has the endpoint's whole name; a peer that lacks the name is refused. */
	uint32_t whole_name = 1;
	/* A peer's thread that is only a target sleeps, and must be woken to help with a copy. */
	uint32_t waking = GDRFAB_COOP_WAKING;
	bool in_host = strstr(info->prov_name, "shm") != nullptr;
	if (gdrfab_fabric_open(info, nullptr, &fabric) < 0 || gdrfab_domain_open(fabric, info, nullptr, &domain) < 0 ||
	    gdrfab_cq_open(domain, &attr, nullptr, &cq) < 0 || gdrfab_av_open(domain, nullptr, nullptr, &av) < 0 ||
	    gdrfab_ep_open(domain, info, nullptr, &ep) < 0 || gdrfab_ep_bind_cq(ep, cq, GDRFAB_TRANSMIT | GDRFAB_RECV) < 0 ||
	    gdrfab_ep_bind_av(ep, av, 0) < 0 ||
	    gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_WHOLE_NAME, &whole_name, sizeof whole_name) < 0 ||
	    (in_host && gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_COOP, &waking, sizeof waking) < 0) ||
	    (s.streams && gdrfab_ep_setopt(ep, GDRFAB_OPT_ENDPOINT, GDRFAB_OPT_TCP_STREAMS, &s.streams, sizeof s.streams) < 0) ||
	    gdrfab_ep_enable(ep) < 0 || gdrfab_ep_getname(ep, own.data(), &len) < 0)
		return last_words();
	limit = info->list_limit;
	return {};
}

bool Link::close()
{
	if (ep && gdrfab_ep_close(ep) < 0)
		return false;
	ep = nullptr;
	return true;
}

Link::~Link()
{
	/* Objects that cannot be closed are leaked: a peer that is stopped inside a copy still uses them. */
	if (!close() || (av && gdrfab_av_close(av) < 0) || (cq && gdrfab_cq_close(cq) < 0) || (domain && gdrfab_domain_close(domain) < 0))
		return;
	if (fabric)
		gdrfab_fabric_close(fabric);
	gdrfab_freeinfo(info);
}

ssize_t Link::insert(const wire::Name &name, uint64_t &index)
{
	return gdrfab_av_insert(av, name.data(), 1, &index, 0, nullptr);
}

void Link::remove(uint64_t index)
{
	gdrfab_av_remove(av, &index, 1, 0);
}

int Link::open_region(void *addr, size_t len, bool device, gdrfab_mr **mr)
{
	iovec piece{addr, len};
	gdrfab_mr_attr attr{};
	attr.struct_size = sizeof attr;
	attr.mr_iov = &piece;
	attr.iov_count = 1;
	attr.access = RIGHTS;
	attr.iface = device ? GDRFAB_HMEM_AUTO : GDRFAB_HMEM_SYSTEM;
	return gdrfab_mr_regattr(domain, &attr, 0, mr);
}

ssize_t Link::post(bool write, const Blocks &b, size_t from, size_t count, uint64_t index, Operation *op)
{
	gdrfab_msg_list msg{};
	msg.struct_size = sizeof msg;
	msg.blocks = b.blocks.data() + from;
	msg.count = count;
	msg.desc = b.descs.data() + (b.descs.size() > 1 ? from : 0);
	msg.desc_count = b.descs.size() > 1 ? count : 1;
	msg.key = b.keys.data() + (b.keys.size() > 1 ? from : 0);
	msg.key_count = b.keys.size() > 1 ? count : 1;
	msg.addr = index;
	msg.context = op;
	/* The end of a write must mean that the target sees the bytes. */
	return write ? gdrfab_writelist(ep, &msg, GDRFAB_DELIVERY_COMPLETE) : gdrfab_readlist(ep, &msg, 0);
}

ssize_t Link::send(const std::string &text, uint64_t index, Operation *op)
{
	return gdrfab_send(ep, text.data(), text.size(), nullptr, index, op);
}

ssize_t Link::receive(void *buf, size_t len, Operation *op)
{
	return gdrfab_recv(ep, buf, len, nullptr, GDRFAB_ADDR_UNSPEC, op);
}

void Link::cancel(Operation *op)
{
	while (gdrfab_cancel(ep, op) == 0)
		;
}

bool Link::hand_out(ssize_t n, const gdrfab_cq_msg_entry *entries)
{
	if (n == -GDRFAB_EAVAIL) {
		char words[512] = "";
		gdrfab_cq_err_entry e{};
		e.struct_size = sizeof e;
		e.err_data = words;
		e.err_data_size = sizeof words;
		if (gdrfab_cq_readerr(cq, &e, 0) != 1)
			return false;
		if (e.op_context)
			static_cast<Operation *>(e.op_context)->ended({e.err ? e.err : EIO, e.len, words});
		return true;
	}
	for (ssize_t i = 0; i < n; i++)
		if (entries[i].op_context)
			static_cast<Operation *>(entries[i].op_context)->ended({0, entries[i].len, {}});
	return n > 0;
}

bool Link::drive()
{
	gdrfab_cq_msg_entry entries[ENTRIES];
	bool any = false;
	for (int round = 0; round < 16; round++) {
		if (!hand_out(gdrfab_cq_read(cq, entries, ENTRIES), entries))
			return any;
		any = true;
	}
	return any;
}

void Link::wait(int timeout_ms)
{
	gdrfab_cq_msg_entry entries[ENTRIES];
	hand_out(gdrfab_cq_sread(cq, entries, ENTRIES, timeout_ms), entries);
}

void Link::wake()
{
	gdrfab_cq_signal(cq);
}

void Link::count(border::Params &to)
{
	gdrfab_stats stats{};
	stats.struct_size = sizeof stats;
	if (!ep || gdrfab_ep_stats(ep, &stats) < 0)
		return;
	static constexpr struct {
		const char *name;
		uint64_t path;
	} counts[] = {{"bytes_direct", GDRFAB_PATH_DIRECT}, {"bytes_cma", GDRFAB_PATH_CMA}, {"bytes_staged", GDRFAB_PATH_STAGED},
		      {"bytes_ipc", GDRFAB_PATH_IPC}, {"bytes_nic", GDRFAB_PATH_NIC}, {"bytes_dmabuf", GDRFAB_PATH_DMABUF},
		      {"bytes_peer_mem", GDRFAB_PATH_PEER_MEM}, {"bytes_socket", GDRFAB_PATH_SOCKET}};
	for (const auto &count : counts)
		to[count.name] = std::to_string(stats.by_path[GDRFAB_PATH_INDEX(count.path)].bytes);
}

std::string Link::path_to(uint64_t index, uint64_t key)
{
	char text[2048], path[64];
	gdrfab_path_info info{};
	info.struct_size = sizeof info;
	if (gdrfab_ep_explain(ep, index, key, text, sizeof text) < 0 || gdrfab_ep_query(ep, index, key, &info) < 0 ||
	    gdrfab_tostr(&info.path, GDRFAB_TYPE_PATHS, path, sizeof path) < 0)
		return "path unknown: " + last_words();
	std::string over(text);
	return over.substr(0, over.find('\n')) + " " + path;
}
