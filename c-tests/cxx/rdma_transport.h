/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Helpers of the programs about the C++ interface (gdrfab/rdma_transport.hpp). TEST_PROVIDER names the provider. */
#ifndef RDMA_TRANSPORT_H
#define RDMA_TRANSPORT_H

#include "fab.h"

#include <gdrfab/rdma_transport.hpp>
#include <memory>
#include <optional>
#include <string>
#include <sys/wait.h>
#include <vector>

#define THROWS(type, word, expression)                                                                                 \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		std::string said_ = "nothing";                                                                         \
		try {                                                                                                  \
			(void)(expression);                                                                            \
		} catch (const type &e) {                                                                              \
			said_ = "";                                                                                    \
			if (*(word) && std::string(e.what()).find(word) == std::string::npos)                          \
				said_ = e.what();                                                                      \
		} catch (const std::exception &e) {                                                                    \
			said_ = std::string("another type: ") + e.what();                                              \
		}                                                                                                      \
		if (!said_.empty())                                                                                    \
			test_fail(__FILE__, __LINE__, "%s throws %s, not %s with \"%s\"", #expression, said_.c_str(),  \
				  #type, word);                                                                        \
	} while (0)

#define GOOD(status)                                                                                                   \
	do {                                                                                                           \
		test_at(__FILE__, __LINE__);                                                                           \
		const gdrfab::RdmaStatus &status_ = (status);                                                          \
		if (!status_.ok())                                                                                     \
			test_fail(__FILE__, __LINE__, "%s is %s", #status, status_.what().c_str());                    \
	} while (0)

inline gdrfab::RdmaOptions options(bool thread = true)
{
	gdrfab::RdmaOptions o;
	o.providers = {provider()};
	o.progressThread = thread;
	if (const char *scale = getenv("TEST_TIME_SCALE"))
		o.connectTimeout *= atoi(scale);
	return o;
}

inline gdrfab::RdmaMemoryOptions memory_options()
{
	gdrfab::RdmaMemoryOptions o;
	o.providers = {provider()};
	return o;
}

/* Two connected transports of this process, each with memory that the other may access. */
struct Two {
	explicit Two(bool thread = true) : bytes_a(100000), bytes_b(100000)
	{
		std::string why;
		gdrfab::detail::DomainRequest request;
		request.provider = provider();
		skip_unless(gdrfab::detail::candidates(request, "", why) != nullptr, why.c_str());
		a = std::make_unique<gdrfab::RdmaTransport>(-1, options(thread));
		b = std::make_unique<gdrfab::RdmaTransport>(-1, options(thread));
		url_a = a->bind();
		url_b = b->bind();
		GOOD(a->connect(url_b));
		GOOD(b->connect(url_a));
		memory_a.emplace(bytes_a.data(), bytes_a.size(), -1, memory_options());
		memory_b.emplace(bytes_b.data(), bytes_b.size(), -1, memory_options());
		remote_a.emplace(memory_a->remoteKey());
		remote_b.emplace(memory_b->remoteKey());
	}
	std::vector<char> bytes_a, bytes_b;
	std::unique_ptr<gdrfab::RdmaTransport> a, b;
	std::string url_a, url_b;
	std::optional<gdrfab::RdmaMemory> memory_a, memory_b;
	std::optional<gdrfab::RdmaRemoteBuffer> remote_a, remote_b;
};

#endif
