/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The binary interface of NIXL's backends, as NIXL 1.0 to 1.5 have it: the structures that libnixl passes, and the
 * virtual functions that it calls. Written from the layouts of the binaries, because no package of NIXL carries
 * headers. border_check.hpp compares it with the NIXL that loads the plugin; `make plugin-nixl NIXL_INCLUDE=`
 * compares it with a source tree of NIXL's. */
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace border {

constexpr int API_VERSION = 1;
constexpr char BACKEND[] = "GDRFAB";

enum Status : int {
	IN_PROGRESS = 1,
	SUCCESS = 0,
	NOT_POSTED = -1,
	INVALID_PARAM = -2,
	FAILED = -3,
	NOT_FOUND = -4,
	MISMATCH = -5,
	NOT_ALLOWED = -6,
	REPOST_ACTIVE = -7,
	UNKNOWN = -8,
	NOT_SUPPORTED = -9,
	REMOTE_DISCONNECT = -10,
	CANCELED = -11,
};
enum Kind : int { DRAM = 0, VRAM = 1 };
enum Direction : int { READ = 0, WRITE = 1 };

using Params = std::unordered_map<std::string, std::string>;
using Kinds = std::vector<Kind>;
using Notifications = std::vector<std::pair<std::string, std::string>>;

/* Opaque to libnixl, which only passes them back. */
struct Metadata {
	virtual ~Metadata() = default;
};
struct Request {
	virtual ~Request() = default;
};

struct InitParams {
	std::string agent, type;
	Params *params;
	bool progress_thread;
	uint64_t progress_delay;
	int sync;
	bool telemetry;
};

struct Desc {
	uintptr_t addr;
	size_t len;
	uint64_t device;
};
struct MetaDesc : Desc {
	Metadata *metadata;
};
struct BlobDesc : Desc {
	std::string blob;
};
template <class T> struct List {
	void *table;
	Kind kind;
	std::vector<T> descs;
};
using MetaList = List<MetaDesc>;

struct Extra {
	std::string notification;
	bool has_notification;
	std::string custom;
};

/* The base class of engines. libnixl reads its fields type, params and failed. */
class Engine {
public:
	virtual ~Engine() = default;
	virtual bool supportsRemote() const = 0;
	virtual bool supportsLocal() const = 0;
	virtual bool supportsNotif() const = 0;
	virtual Kinds getSupportedMems() const = 0;
	virtual Status registerMem(const BlobDesc &, const Kind &, Metadata *&) = 0;
	virtual Status deregisterMem(Metadata *) = 0;
	virtual Status connect(const std::string &) = 0;
	virtual Status disconnect(const std::string &) = 0;
	virtual Status unloadMD(Metadata *) = 0;
	virtual Status prepXfer(const Direction &, const MetaList &, const MetaList &, const std::string &, Request *&, const Extra *) const = 0;
	virtual Status postXfer(const Direction &, const MetaList &, const MetaList &, const std::string &, Request *&, const Extra *) const = 0;
	virtual Status checkXfer(Request *) const = 0;
	virtual Status releaseReqH(Request *) const = 0;
	virtual Status prepRemoteMemView(const void *, void *&, const Extra *) const { return NOT_SUPPORTED; }
	virtual Status prepLocalMemView(const void *, void *&, const Extra *) const { return NOT_SUPPORTED; }
	virtual void releaseMemView(void *) const {}
	virtual Status getPublicData(const Metadata *, std::string &) const = 0;
	virtual Status getConnInfo(std::string &) const = 0;
	virtual Status loadRemoteConnInfo(const std::string &, const std::string &) = 0;
	virtual Status loadRemoteMD(const BlobDesc &, const Kind &, const std::string &, Metadata *&) = 0;
	virtual Status loadLocalMD(Metadata *, Metadata *&) = 0;
	virtual Status getNotifs(Notifications &) = 0;
	virtual Status genNotif(const std::string &, const std::string &) const = 0;
	virtual Status queryMem(const void *, void *) const { return NOT_SUPPORTED; }
	virtual Status estimateXferCost(const Direction &, const MetaList &, const MetaList &, const std::string &, Request *const &,
					void *, void *, void *, const void *) const
	{
		return NOT_SUPPORTED;
	}

	std::string type;
	/* Read right after getSupportedMems() was called, under one lock of the agent. */
	mutable Params params;
	std::vector<std::pair<int, uint64_t>> events;
	std::mutex events_lock;
	bool failed = false;
	const std::string agent;
	const bool telemetry;

protected:
	explicit Engine(const InitParams &init)
	    : type(init.type), params(init.params ? *init.params : Params()), agent(init.agent), telemetry(init.telemetry)
	{
	}
};

struct Plugin {
	int api_version;
	Engine *(*create)(const InitParams *);
	void (*destroy)(Engine *);
	const char *(*name)();
	const char *(*version)();
	Params (*options)();
	Kinds (*kinds)();
};

static_assert(sizeof(Plugin) == 56 && sizeof(InitParams) == 96 && sizeof(MetaDesc) == 32 && sizeof(BlobDesc) == 56);
static_assert(sizeof(MetaList) == 40 && sizeof(Extra) == 72);
#ifdef __x86_64__
static_assert(sizeof(Engine) == 208);
#endif

} // namespace border
