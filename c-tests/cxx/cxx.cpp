/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* gdrfab.h used from C++11: two processes, a message, a write with data, and objects closed by destructors. */
#include <gdrfab.h>

#include "fab.h"

#include <memory>
#include <string>
#include <type_traits>
#include <vector>

static_assert(std::is_standard_layout<gdrfab_info>::value, "a plain struct");
static_assert(std::is_trivial<gdrfab_cq_data_entry>::value, "a plain struct");
static_assert(GDRFAB_ADDR_UNSPEC == UINT64_MAX, "constants are usable in constant expressions");
static_assert(std::is_same<decltype(&gdrfab_mr_key), uint64_t (*)(gdrfab_mr *)>::value, "C linkage, C types");

namespace {

template <typename T, int (*close)(T *)> struct Closer {
	void operator()(T *t) const
	{
		OK(close(t));
	}
};
using Region = std::unique_ptr<gdrfab_mr, Closer<gdrfab_mr, gdrfab_mr_close>>;
using Info = std::unique_ptr<gdrfab_info, void (*)(gdrfab_info *)>;

Region registered(node *n, std::vector<char> &memory)
{
	gdrfab_mr *mr = nullptr;
	OK(gdrfab_mr_reg(n->domain, memory.data(), memory.size(), REMOTE_ACCESS, 0, 0, 0, nullptr, &mr));
	return Region(mr);
}

void server(node *n)
{
	node_up(n);
	skip_unless(n->info->cq_data_size > 0, "no data goes with writes");
	std::vector<char> memory(64, '.'), in(64, '.');
	{
		Region region = registered(n, memory);
		remote r = {gdrfab_mr_key(region.get()), reinterpret_cast<uintptr_t>(memory.data()), memory.size()};
		void *desc = local_desc(n, in.data(), in.size());
		POST(n->cq, gdrfab_recv(n->ep, in.data(), in.size(), desc, 0, in.data()));
		data_room(n);
		oob_send(n, &r, sizeof r);
		done e;
		DONE(n->cq, in.data(), GDRFAB_RECV | GDRFAB_MSG, &e);
		CHECK_EQ(std::string(in.data(), e.len).compare("message"), 0);
		DATA_CAME(n, &e);
		CHECK_EQ(e.data, 42);
		CHECK_EQ(std::string(memory.data(), e.len).compare("written"), 0);
		barrier(n);
	}
	node_down(n);
}

void client(node *n)
{
	node_up(n);
	skip_unless(n->info->cq_data_size > 0, "no data goes with writes");
	remote to = mem_fetch(n);
	std::string message = "message", written = "written";
	void *desc = local_desc(n, message.data(), message.size());
	POST(n->cq, gdrfab_send(n->ep, message.data(), message.size(), desc, 0, &message));
	DONE(n->cq, &message, GDRFAB_SEND, nullptr);
	desc = local_desc(n, written.data(), written.size());
	POST(n->cq, gdrfab_writedata(n->ep, written.data(), written.size(), desc, 42, 0, to.base, to.key, &written));
	DONE(n->cq, &written, GDRFAB_WRITE, nullptr);
	barrier(n);
	node_down(n);
}

} // namespace

TEST(message_and_write_from_cxx)
{
	pair(nullptr, server, client, nullptr);
}

TEST(info_from_cxx)
{
	static const setup defaults = {};
	gdrfab_info *raw = nullptr;
	char start[GDRFAB_ADDR_MAX];
	address_start(start, sizeof start);
	const std::string service(traits()->numbered ? "18515" : "cxx");
	Info hints(hints_new(&defaults), gdrfab_freeinfo);
	OK(provider_getinfo(service.c_str(), 0, hints.get(), &raw));
	Info info(raw, gdrfab_freeinfo);
	CHECK_EQ(std::string(info->dest_addr).compare(start + service), 0);
	struct event e;
	CHECK(GDRFAB_EQ_CM_DATA(&e) == e.data);
}
