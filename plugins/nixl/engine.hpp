/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The backend of one agent: implements NIXL's calls with one endpoint, its regions, peers and transfers. */
#pragma once

#include "border.hpp"
#include "link.hpp"
#include "mail.hpp"
#include "peer.hpp"
#include "transfer.hpp"

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <thread>
#include <vector>

class Gdrfab final : public border::Engine {
public:
	explicit Gdrfab(const border::InitParams &init);
	~Gdrfab() override;

	bool supportsRemote() const override { return true; }
	bool supportsLocal() const override { return true; }
	bool supportsNotif() const override { return true; }
	border::Kinds getSupportedMems() const override;
	border::Status registerMem(const border::BlobDesc &, const border::Kind &, border::Metadata *&) override;
	border::Status deregisterMem(border::Metadata *) override;
	border::Status connect(const std::string &) override;
	border::Status disconnect(const std::string &) override;
	border::Status unloadMD(border::Metadata *) override;
	border::Status prepXfer(const border::Direction &, const border::MetaList &, const border::MetaList &, const std::string &,
				border::Request *&, const border::Extra *) const override;
	border::Status postXfer(const border::Direction &, const border::MetaList &, const border::MetaList &, const std::string &,
				border::Request *&, const border::Extra *) const override;
	border::Status checkXfer(border::Request *) const override;
	border::Status releaseReqH(border::Request *) const override;
	border::Status getPublicData(const border::Metadata *, std::string &) const override;
	border::Status getConnInfo(std::string &) const override;
	border::Status loadRemoteConnInfo(const std::string &, const std::string &) override;
	border::Status loadRemoteMD(const border::BlobDesc &, const border::Kind &, const std::string &, border::Metadata *&) override;
	border::Status loadLocalMD(border::Metadata *, border::Metadata *&) override;
	border::Status getNotifs(border::Notifications &) override;
	border::Status genNotif(const std::string &, const std::string &) const override;

private:
	/* The state that NIXL's const calls change. These are const by name only, and run in several threads at
	 * once. */
	struct State;

	std::unique_ptr<State> state;
};
