/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The header from C++11, in use: two processes, a message, a write with data, and ownership by destructors. */
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
	std::vector<char> memory(64, '.'), in(64, '.');
	{
		Region region = registered(n, memory);
		remote r = {gdrfab_mr_key(region.get()), reinterpret_cast<uintptr_t>(memory.data()), memory.size()};
		POST(n->cq, gdrfab_recv(n->ep, in.data(), in.size(), nullptr, 0, in.data()));
		oob_send(n, &r, sizeof r);
		done e;
		DONE(n->cq, in.data(), GDRFAB_RECV | GDRFAB_MSG, &e);
		CHECK_EQ(std::string(in.data(), e.len).compare("message"), 0);
		DONE(n->cq, nullptr, GDRFAB_REMOTE_WRITE | GDRFAB_REMOTE_CQ_DATA, &e);
		CHECK_EQ(e.data, 42);
		CHECK_EQ(std::string(memory.data(), e.len).compare("written"), 0);
		barrier(n);
	}
	node_down(n);
}

void client(node *n)
{
	node_up(n);
	remote to = mem_fetch(n);
	std::string message = "message", written = "written";
	POST(n->cq, gdrfab_send(n->ep, message.data(), message.size(), nullptr, 0, &message));
	DONE(n->cq, &message, GDRFAB_SEND, nullptr);
	POST(n->cq, gdrfab_writedata(n->ep, written.data(), written.size(), nullptr, 42, 0, to.base, to.key, &written));
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
	gdrfab_info *raw = nullptr;
	OK(gdrfab_getinfo(gdrfab_version(), nullptr, "cxx", 0, nullptr, &raw));
	Info info(raw, gdrfab_freeinfo);
	CHECK_EQ(std::string(info->dest_addr).compare("shm://cxx"), 0);
	struct event e;
	CHECK(GDRFAB_EQ_CM_DATA(&e) == e.data);
}
