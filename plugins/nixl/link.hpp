/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* One connectionless endpoint of gdrfab with its fabric, domain, queue and address vector, and the base class of its
 * operations, which are told of their end. */
#pragma once

#include "settings.hpp"
#include "wire.hpp"

#include <gdrfab.h>

#include <string>
#include <vector>

/* The end of an operation: err is 0, or a positive errno with its text. */
struct Ending {
	int err;
	size_t len;
	std::string words;
};

/* The context of an operation. Any thread that calls drive() or wait() may call ended(); it holds no locks then. */
class Operation {
public:
	virtual void ended(const Ending &) = 0;

protected:
	~Operation() = default;
};

/* Blocks between this agent and one peer, with one descriptor and key for each block, or one of each for all. */
struct Blocks {
	std::vector<gdrfab_block> blocks;
	std::vector<void *> descs;
	std::vector<uint64_t> keys;
};

class Link {
public:
	Link() = default;
	~Link();
	Link(const Link &) = delete;
	Link &operator=(const Link &) = delete;

	/* Returns "" or the reason of the failure. */
	std::string open(const Settings &);
	/* Ends all operations: ended() is not called afterwards. False: a peer is still inside a buffer. */
	bool close();

	wire::Name name() const { return own; }
	size_t list_limit() const { return limit; }

	/* These return the results of gdrfab's calls. */
	ssize_t insert(const wire::Name &, uint64_t &index);
	void remove(uint64_t index);
	int open_region(void *addr, size_t len, bool device, gdrfab_mr **mr);
	ssize_t post(bool write, const Blocks &, size_t from, size_t count, uint64_t index, Operation *);
	ssize_t send(const std::string &, uint64_t index, Operation *);
	ssize_t receive(void *buf, size_t len, Operation *);
	/* Cancels all parts of the operation that can still be cancelled. */
	void cancel(Operation *);

	/* Reads completions. False: there was none. */
	bool drive();
	/* Like drive(), but sleeps up to timeout_ms for a completion. */
	void wait(int timeout_ms);
	void wake();

	/* Adds the bytes of transfers by path, as "bytes_cma" and the like. */
	void count(border::Params &);
	/* Returns text such as "over shm: cma", or the reason why the path is not known. */
	std::string path_to(uint64_t index, uint64_t key);

private:
	bool hand_out(ssize_t n, const gdrfab_cq_msg_entry *entries);

	gdrfab_info *info = nullptr;
	gdrfab_fabric *fabric = nullptr;
	gdrfab_domain *domain = nullptr;
	gdrfab_cq *cq = nullptr;
	gdrfab_av *av = nullptr;
	gdrfab_ep *ep = nullptr;
	wire::Name own{};
	size_t limit = 1;
};

/* The text of the last error of gdrfab in this thread. */
std::string last_words();
