/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* The functions that NIXL looks up by name. NIXL first asks for the parameters, ends the plugin, and starts it
 * again. */
#include "border_check.hpp"
#include "engine.hpp"
#include "log.hpp"

#include <gdrfab.h>

static border::Engine *create(const border::InitParams *init)
{
	try {
		if (!border::plausible(init)) {
			logs::say(logs::ERROR, "this version of NIXL passes parameters in an unknown way");
			return nullptr;
		}
		logs::adopt_library();
		return new Gdrfab(*init);
	} catch (const std::exception &e) {
		logs::say(logs::ERROR, e.what());
		return nullptr;
	}
}

static void destroy(border::Engine *engine)
{
	delete engine;
}

static const char *name()
{
	return border::BACKEND;
}

static const char *version()
{
	return gdrfab_version_string();
}

static border::Kinds kinds()
{
	return {border::DRAM, border::VRAM};
}

extern "C" __attribute__((visibility("default"))) border::Plugin *nixl_plugin_init()
{
	static border::Plugin plugin = {border::API_VERSION, create, destroy, name, version, settings_offered, kinds};
	try {
		std::string wrong = border::check(__builtin_return_address(0));
		if (wrong.empty())
			return &plugin;
		logs::say(logs::ERROR, "this NIXL's backend interface is not known, so the plugin is not used: " + wrong);
	} catch (const std::exception &e) {
		logs::say(logs::ERROR, e.what());
	}
	return nullptr;
}

extern "C" __attribute__((visibility("default"))) void nixl_plugin_fini() {}
