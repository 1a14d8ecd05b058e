/* SPDX-License-Identifier: Apache-2.0 OR MIT */
/* Compares the interface in NIXL's headers with border.hpp: make plugin-nixl NIXL_INCLUDE=<NIXL's source> compiles
 * this file. */
#include "backend/backend_engine.h"
#include "backend/backend_plugin.h"

#include "../border.hpp"

#define SAME(theirs, ours) static_assert(sizeof(theirs) == sizeof(ours) && alignof(theirs) == alignof(ours), #theirs)
SAME(nixlBackendEngine, border::Engine);
SAME(nixlBackendInitParams, border::InitParams);
SAME(nixlBackendOptionalArgs, border::Extra);
SAME(nixlBackendPlugin, border::Plugin);
SAME(nixlMetaDesc, border::MetaDesc);
SAME(nixlBlobDesc, border::BlobDesc);
SAME(nixlDescList<nixlMetaDesc>, border::MetaList);
SAME(nixl_b_params_t, border::Params);
SAME(nixl_mem_list_t, border::Kinds);
SAME(notif_list_t, border::Notifications);

#define VALUE(theirs, ours) static_assert(static_cast<int>(theirs) == static_cast<int>(border::ours), #theirs)
VALUE(NIXL_IN_PROG, IN_PROGRESS);
VALUE(NIXL_SUCCESS, SUCCESS);
VALUE(NIXL_ERR_NOT_POSTED, NOT_POSTED);
VALUE(NIXL_ERR_INVALID_PARAM, INVALID_PARAM);
VALUE(NIXL_ERR_BACKEND, FAILED);
VALUE(NIXL_ERR_NOT_FOUND, NOT_FOUND);
VALUE(NIXL_ERR_MISMATCH, MISMATCH);
VALUE(NIXL_ERR_NOT_ALLOWED, NOT_ALLOWED);
VALUE(NIXL_ERR_REPOST_ACTIVE, REPOST_ACTIVE);
VALUE(NIXL_ERR_NOT_SUPPORTED, NOT_SUPPORTED);
VALUE(NIXL_ERR_REMOTE_DISCONNECT, REMOTE_DISCONNECT);
VALUE(NIXL_ERR_CANCELED, CANCELED);
VALUE(DRAM_SEG, DRAM);
VALUE(VRAM_SEG, VRAM);
VALUE(NIXL_READ, READ);
VALUE(NIXL_WRITE, WRITE);
VALUE(NIXL_PLUGIN_API_VERSION, API_VERSION);
